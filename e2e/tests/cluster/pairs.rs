//! Two copies: who takes remote write, and the scale subresource.
use std::net::{IpAddr, SocketAddr};

use metricsstore_e2e::bench::population::{Population, Shape};
use metricsstore_e2e::bench::wire::Connection;
use serde_json::json;

use super::support::{Store, now_ms, small, text, write_request};

#[test]
fn a_pair_takes_remote_write_by_pod_only_and_scales() {
    let mut spec = small();
    spec["replicas"] = json!(2);
    let store = Store::ready("pairs", &spec);
    let status = store.wait_ready()["status"].clone();
    let write = status["endpoints"]["write"].as_array().unwrap().clone();
    assert_eq!(write.len(), 2, "{status}");

    let request = write_request(&Population::new(3, 200, Shape::USUAL), 0..1, 0, now_ms());
    // The pod's own address is one of its names; the client Service stands for either pod.
    let answer = Connection::open(store.address()).unwrap().write("/api/v1/write", &request).unwrap();
    assert_eq!(answer.status / 100, 2, "{}", text(&answer));
    let service: IpAddr =
        store.get("service", "main")["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    let answer =
        Connection::open(SocketAddr::new(service, 9090)).unwrap().write("/api/v1/write", &request).unwrap();
    assert_eq!(answer.status, 503, "{}", text(&answer));
    for address in &write {
        let host = address.as_str().unwrap().trim_start_matches("http://").split('/').next().unwrap();
        assert!(text(&answer).contains(host), "{} does not name {host}", text(&answer));
    }

    store.text(&["scale", "metricsstore", "main", "--replicas=1"]);
    let scaled = store.wait_for("metricsstore", "main", "one replica", |store| {
        store["spec"]["replicas"] == 1 && store["status"]["replicas"] == 1
    });
    let selector = scaled["status"]["selector"].as_str().unwrap();
    assert_eq!(store.text(&["get", "pods", "--selector", selector, "--output=name"]).trim(), "pod/main-0");
    store.wait_ready();
    // One copy takes writes under any name.
    let answer =
        Connection::open(SocketAddr::new(service, 9090)).unwrap().write("/api/v1/write", &request).unwrap();
    assert_eq!(answer.status / 100, 2, "{}", text(&answer));
}
