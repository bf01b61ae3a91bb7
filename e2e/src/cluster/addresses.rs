//! Names and addresses inside the cluster's namespaces; none of them exists outside.

/// The one node.
pub const NODE: &str = "node-0";
/// The node's address; the daemons' metrics are reachable on it from pods.
pub const NODE_IP: &str = "10.89.0.1";
/// Service addresses.
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
/// `kubernetes.default`: the first service address.
pub const API_SERVICE_IP: &str = "10.96.0.1";
/// Cluster DNS.
pub const DNS_IP: &str = "10.96.0.10";
/// Pod addresses.
pub const POD_CIDR: &str = "10.244.0.0/24";
/// The image of every program the cluster itself runs as a pod; also has busybox, for test pods.
pub const NODE_IMAGE: &str = "metricsstore.local/cluster-node:1";
/// How parent cgroups begin; each cluster has one of its own.
pub const CGROUP_PREFIX: &str = "metricsstore-e2e-";
