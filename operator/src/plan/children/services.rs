//! Services: one for reading, one that gives every pod a name. Neither but the headless one carries the operations port.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::plan::names;
use crate::reconcile::Valid;

/// For reading: ready pods only. Copies differ by what they missed, so a client stays with one of them.
pub fn web(valid: &Valid) -> Service {
    Service {
        metadata: names::child(valid, valid.name.clone()),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            selector: Some(names::selector(&valid.name)),
            ports: Some(vec![port("web", names::WEB_PORT)]),
            session_affinity: Some(if valid.replicas > 1 { "ClientIP" } else { "None" }.into()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Headless, pods that are not ready included: senders and the operator reach each pod by its own name.
pub fn pods(valid: &Valid) -> Service {
    Service {
        metadata: names::child(valid, names::pods_service(&valid.name)),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            selector: Some(names::selector(&valid.name)),
            ports: Some(vec![port("web", names::WEB_PORT), port("ops", names::OPS_PORT)]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number.into(),
        protocol: Some("TCP".into()),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    }
}
