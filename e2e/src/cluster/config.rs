//! The configuration files of the cluster's daemons.
use std::path::Path;

use super::addresses::{DNS_IP, NODE_IMAGE, NODE_IP, POD_CIDR};
use super::cgroup;
use crate::{Result, places};

/// Writes all of them below the state folder.
pub fn write(state: &Path) -> Result<()> {
    let conf = state.join("conf");
    places::write(&conf.join("containerd.toml"), containerd())?;
    places::write(&conf.join("kubelet.yaml"), kubelet(state, &cgroup::parent()?))?;
    places::write(&conf.join("kube-proxy.yaml"), kube_proxy(state))?;
    places::write(&conf.join("audit.yaml"), AUDIT)?;
    places::write(&conf.join("resolv.conf"), "")?;
    places::write(&state.join("fs/etc/cni/net.d/10-metricsstore.conflist"), cni())
}

/// Every request with its user and verb, once, when it is answered: tests count what the operator writes.
const AUDIT: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// `restrict_oom_score_adj`: root in a container may not lower it, and every pod would fail to start.
fn containerd() -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{NODE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
"#
    )
}

/// No eviction and no image collection: a full disk of the machine must not stop the tests, and an image that was
/// imported cannot be pulled again. The resolver file is empty: names outside the cluster do not exist.
fn kubelet(state: &Path, parent_cgroup: &str) -> String {
    let state = state.display();
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: "{state}/pki/kubernetes-ca.crt"}}}}
authorization: {{mode: Webhook}}
tlsCertFile: "{state}/pki/kubelet-serving.crt"
tlsPrivateKeyFile: "{state}/pki/kubelet-serving.key"
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /{parent_cgroup}
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [{DNS_IP}]
resolvConf: "{state}/conf/resolv.conf"
imageGCHighThresholdPercent: 100
evictionHard: {{nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", memory.available: "100Mi"}}
oomScoreAdj: 0
registerNode: true
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
serializeImagePulls: true
"#
    )
}

/// Conntrack settings of zero: they have no namespace and belong to the host.
fn kube_proxy(state: &Path) -> String {
    let state = state.display();
    format!(
        r#"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: {POD_CIDR}
clientConnection: {{kubeconfig: "{state}/pki/kube-proxy.kubeconfig"}}
oomScoreAdj: 0
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: {NODE_IP}:10249
"#
    )
}

fn cni() -> String {
    format!(
        r#"{{"cniVersion": "0.4.0", "name": "metricsstore", "plugins": [
  {{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{POD_CIDR}"}}]],
            "routes": [{{"dst": "0.0.0.0/0"}}], "dataDir": "/var/lib/cni/networks"}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"#
    )
}
