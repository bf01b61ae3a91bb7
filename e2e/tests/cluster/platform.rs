//! What everything else relies on: pods run, names resolve, claims are bound, limits hold, requests are audited.
use std::time::Duration;

use metricsstore_e2e::audit::Mark;
use metricsstore_e2e::cluster::addresses::{NODE, NODE_IMAGE, NODE_IP};
use metricsstore_e2e::cluster::cgroup;
use metricsstore_e2e::kubectl::Kubectl;

const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn the_node_runs_the_version_that_kubectl_has() {
    let kubectl = Kubectl::inside();
    let versions = kubectl.json(&["version"]).unwrap();
    assert_eq!(versions["clientVersion"]["gitVersion"], versions["serverVersion"]["gitVersion"]);
    let node = kubectl.json(&["get", "node", NODE]).unwrap();
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], versions["serverVersion"]["gitVersion"]);
}

#[test]
fn a_pod_serves_its_claim_under_a_name_within_its_limit() {
    let kubectl = Kubectl::inside();
    kubectl.apply(&web_server("platform")).unwrap();
    let pod = kubectl
        .wait_for(&["pod", "web", "--namespace", "platform"], "the pod to be Ready", PATIENCE, |pod| {
            metricsstore_e2e::kubectl::condition_status(pod, "Ready") == Some("True")
        })
        .unwrap();
    let limit = cgroup::of_container(&pod, "web", "memory").unwrap();
    let limit = ["memory.limit_in_bytes", "memory.max"]
        .iter()
        .find_map(|file| std::fs::read_to_string(limit.join(file)).ok());
    assert_eq!(limit.as_deref().map(str::trim), Some("33554432"));
    let page = kubectl
        .text(&[
            "--namespace",
            "platform",
            "exec",
            "web",
            "--",
            "/bin/wget",
            "-q",
            "-O",
            "-",
            "http://web.platform.svc:8080/page",
        ])
        .unwrap();
    assert_eq!(page.trim(), "kept");
    kubectl.text(&["delete", "namespace", "platform", "--wait=false"]).unwrap();
}

#[test]
fn a_request_is_in_the_audit_log_when_it_is_answered() {
    let mark = Mark::now().unwrap();
    let kubectl = Kubectl::inside();
    kubectl.text(&["create", "namespace", "audited"]).unwrap();
    kubectl.text(&["get", "namespace", "audited"]).unwrap();
    kubectl.text(&["delete", "namespace", "audited", "--wait=false"]).unwrap();
    let writes = mark.writes_by("kubernetes-admin").unwrap();
    let count = |verb: &str| {
        writes.iter().filter(|write| write.verb == verb && write.uri.contains("namespaces")).count()
    };
    assert!(count("create") >= 1 && count("delete") >= 1, "{writes:?}");
    assert!(writes.iter().all(|write| write.verb != "get"), "{writes:?}");
}

#[test]
fn the_daemons_metrics_are_reachable_on_the_nodes_address() {
    let kubectl = Kubectl::inside();
    for port in [2381, 6443, 10249, 10250, 10257, 10259] {
        assert!(std::net::TcpStream::connect((NODE_IP, port)).is_ok(), "nothing listens on {NODE_IP}:{port}");
    }
    let dns = kubectl.raw("/api/v1/namespaces/kube-system/services/kube-dns:metrics/proxy/metrics").unwrap();
    assert!(dns.contains("coredns_build_info"), "{dns}");
}

/// Busybox' web server on a claim, and a service before it.
fn web_server(namespace: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: pages, namespace: {namespace}}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 16Mi}}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {namespace}}}
spec: {{selector: {{app: web}}, ports: [{{port: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: {namespace}, labels: {{app: web}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: {NODE_IMAGE}
    imagePullPolicy: Never
    command: [/bin/sh, -c, "echo kept > /pages/page; exec httpd -f -p 8080 -h /pages"]
    resources: {{limits: {{memory: 32Mi}}}}
    readinessProbe: {{httpGet: {{path: /page, port: 8080}}, periodSeconds: 1}}
    volumeMounts: [{{name: pages, mountPath: /pages}}]
  volumes: [{{name: pages, persistentVolumeClaim: {{claimName: pages}}}}]
"#
    )
}
