//! The cluster's certificate authorities, certificates and kubeconfigs, made with the openssl program.
use std::path::{Path, PathBuf};
use std::process::Command;

use super::addresses::{API_SERVICE_IP, NODE, NODE_IP};
use crate::{Error, Result, places, program};

/// A certificate: file name, authority, subject, and what it is for.
struct Certificate {
    name: &'static str,
    authority: &'static str,
    subject: String,
    usage: Usage,
}

enum Usage {
    Client,
    /// With the subject alternative names.
    Server(String),
}

/// Components that get a kubeconfig next to their client certificate.
const KUBECONFIGS: [&str; 5] = ["admin", "controller-manager", "scheduler", "kube-proxy", "kubelet"];

/// Makes everything anew in `dir`.
pub fn create(dir: &Path) -> Result<()> {
    places::create_dir(dir)?;
    for authority in ["kubernetes-ca", "front-proxy-ca"] {
        create_authority(dir, authority)?;
    }
    for certificate in certificates() {
        certificate.create(dir)?;
    }
    // Signs service account tokens.
    openssl(dir, &["genrsa", "-out", "sa.key", "2048"])?;
    openssl(dir, &["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"])?;
    KUBECONFIGS.iter().try_for_each(|user| write_kubeconfig(dir, user))
}

/// The administrator's kubeconfig.
pub fn admin_kubeconfig(dir: &Path) -> PathBuf {
    dir.join("admin.kubeconfig")
}

fn certificates() -> Vec<Certificate> {
    let kubernetes = |name, subject: &str, usage| Certificate {
        name,
        authority: "kubernetes-ca",
        subject: subject.to_owned(),
        usage,
    };
    let node_names = format!("DNS:{NODE},DNS:localhost,IP:{NODE_IP},IP:127.0.0.1");
    let api_names = format!(
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
         DNS:kubernetes.default.svc.cluster.local,IP:{API_SERVICE_IP},{node_names}"
    );
    let node_subject = format!("/O=system:nodes/CN=system:node:{NODE}");
    vec![
        kubernetes("apiserver", "/CN=kube-apiserver", Usage::Server(api_names)),
        kubernetes("kubelet-serving", &node_subject, Usage::Server(node_names.clone())),
        // Controller manager and scheduler serve their metrics with it.
        kubernetes("components", "/CN=control-plane", Usage::Server(node_names)),
        kubernetes(
            "apiserver-kubelet-client",
            "/O=system:masters/CN=kube-apiserver-kubelet-client",
            Usage::Client,
        ),
        kubernetes("admin", "/O=system:masters/CN=kubernetes-admin", Usage::Client),
        kubernetes("controller-manager", "/CN=system:kube-controller-manager", Usage::Client),
        kubernetes("scheduler", "/CN=system:kube-scheduler", Usage::Client),
        kubernetes("kube-proxy", "/CN=system:kube-proxy", Usage::Client),
        kubernetes("kubelet", &node_subject, Usage::Client),
        Certificate {
            name: "front-proxy-client",
            authority: "front-proxy-ca",
            subject: "/CN=front-proxy-client".to_owned(),
            usage: Usage::Client,
        },
    ]
}

impl Certificate {
    fn create(&self, dir: &Path) -> Result<()> {
        let Certificate { name, authority, subject, usage } = self;
        let usage = match usage {
            Usage::Client => "extendedKeyUsage=clientAuth".to_owned(),
            Usage::Server(names) => format!("extendedKeyUsage=serverAuth\nsubjectAltName={names}"),
        };
        let extensions = format!("basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\n{usage}\n");
        let file = |ending: &str| format!("{name}.{ending}");
        places::write(&dir.join(file("ext")), extensions)?;
        create_key(dir, name)?;
        openssl(dir, &["req", "-new", "-key", &file("key"), "-subj", subject, "-out", &file("csr")])?;
        let (ca, ca_key) = (format!("{authority}.crt"), format!("{authority}.key"));
        openssl(
            dir,
            &[
                "x509",
                "-req",
                "-in",
                &file("csr"),
                "-CA",
                &ca,
                "-CAkey",
                &ca_key,
                "-CAcreateserial",
                "-days",
                "3650",
                "-extfile",
                &file("ext"),
                "-out",
                &file("crt"),
            ],
        )
    }
}

fn create_authority(dir: &Path, name: &str) -> Result<()> {
    create_key(dir, name)?;
    openssl(
        dir,
        &[
            "req",
            "-x509",
            "-new",
            "-key",
            &format!("{name}.key"),
            "-days",
            "3650",
            "-subj",
            &format!("/CN={name}"),
            "-out",
            &format!("{name}.crt"),
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        ],
    )
}

fn create_key(dir: &Path, name: &str) -> Result<()> {
    openssl(dir, &["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &format!("{name}.key")])
}

/// Refers to the certificates by path: the file itself holds no secret.
fn write_kubeconfig(dir: &Path, user: &str) -> Result<()> {
    let file = |name: String| dir.join(name).display().to_string();
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "metricsstore", "cluster": {
            "server": "https://127.0.0.1:6443",
            "certificate-authority": file("kubernetes-ca.crt".to_owned()),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate": file(format!("{user}.crt")),
            "client-key": file(format!("{user}.key")),
        }}],
        "contexts": [{"name": "metricsstore", "context": {"cluster": "metricsstore", "user": user}}],
        "current-context": "metricsstore",
    });
    let path = dir.join(format!("{user}.kubeconfig"));
    std::fs::write(&path, format!("{config:#}\n")).map_err(Error::file("write", &path))
}

fn openssl(dir: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("openssl");
    command.current_dir(dir).args(arguments);
    program::quiet("making the cluster's certificates", &mut command, "check that openssl 3 is installed")
        .map(drop)
}
