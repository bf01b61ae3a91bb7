//! Whether a request's `Host` names this very pod.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// With two or more replicas remote write must reach each of them. A request addressed to anything but the pod itself
/// (the client Service above all) would feed one copy and starve the other, so the engine takes only its own names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnHost {
    /// The headless Service under which the pods have names, such as `main-pods`.
    pub service: String,
    /// The store's namespace.
    pub namespace: String,
}

impl OwnHost {
    /// `host` is the request's `Host` header, port included or not; `pod` is the pod's name (its host name); `local` is
    /// the address on which the connection arrived. Loopback addresses and `localhost` are always the pod itself.
    pub fn admits(&self, host: &str, pod: &str, local: IpAddr) -> bool {
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        if let Ok(address) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return address.to_canonical().is_loopback() || address.to_canonical() == local.to_canonical();
        }
        name == "localhost" || self.names_pod(&name, pod)
    }

    /// `<pod>.<service>`, then optionally the namespace, `svc` and the cluster's domain.
    fn names_pod(&self, name: &str, pod: &str) -> bool {
        let Some(rest) = name
            .strip_prefix(pod)
            .and_then(|rest| rest.strip_prefix('.'))
            .and_then(|rest| rest.strip_prefix(self.service.as_str()))
        else {
            return false;
        };
        if rest.is_empty() {
            return true;
        }
        let Some(rest) = rest.strip_prefix('.').and_then(|rest| rest.strip_prefix(self.namespace.as_str()))
        else {
            return false;
        };
        rest.is_empty() || rest == ".svc" || rest.starts_with(".svc.")
    }
}

fn without_port(host: &str) -> &str {
    if let Some(end) = host.find(']') {
        return &host[..=end];
    }
    match host.rsplit_once(':') {
        // A bare IPv6 address has more colons and no port.
        Some((name, port)) if !name.contains(':') && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(host: &str) -> bool {
        let own = OwnHost { service: "main-pods".into(), namespace: "monitoring".into() };
        own.admits(host, "main-0", "10.1.2.3".parse().unwrap())
    }

    #[test]
    fn the_pods_own_names_and_addresses_are_taken() {
        for host in [
            "main-0.main-pods",
            "main-0.main-pods:9090",
            "main-0.main-pods.monitoring",
            "main-0.main-pods.monitoring.svc:9090",
            "main-0.main-pods.monitoring.svc.cluster.local",
            "Main-0.main-pods.monitoring.svc.cluster.local.:9090",
            "10.1.2.3:9090",
            "10.1.2.3",
            "127.0.0.1:9090",
            "[::1]:9090",
            "::1",
            "localhost:1",
            "[::ffff:10.1.2.3]:9090",
        ] {
            assert!(admits(host), "{host}");
        }
    }

    #[test]
    fn every_other_name_is_refused() {
        for host in [
            "",
            "main:9090",
            "main.monitoring.svc",
            "main-0",
            "main-1.main-pods",
            "main-01.main-pods",
            "main-0.main-podsx",
            "main-0.main-pods.other.svc",
            "main-0.main-pods.monitoring.svcx",
            "10.1.2.4:9090",
            "10.0.0.1",
            "[fd00::1]:9090",
        ] {
            assert!(!admits(host), "{host}");
        }
    }
}
