//! The first process inside the cluster's namespaces: prepares them, starts the daemons in order, then reaps.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::addresses::{NODE, NODE_IP, POD_CIDR, SERVICE_CIDR};
use super::{Phase, host, pki};
use crate::{Error, Result, places, program, wait};

/// Prepares and starts everything, reports through [`Phase`], and then stays to reap what falls to it.
pub fn run(state: &Path) -> Result<()> {
    if std::process::id() != 1 {
        return Err(Error::missing(
            "this is the first process of the cluster's namespaces and must not run elsewhere",
            "use `cargo xtask cluster up`",
        ));
    }
    let mut init = Init { state: state.to_owned(), daemons: Vec::new() };
    match init.start() {
        Ok(()) => Phase::Started.write(state)?,
        Err(error) => Phase::Failed(error.to_string()).write(state)?,
    }
    init.reap();
    Ok(())
}

struct Init {
    state: PathBuf,
    daemons: Vec<(&'static str, Child)>,
}

impl Init {
    fn start(&mut self) -> Result<()> {
        self.phase("preparing mounts and network")?;
        self.prepare_mounts()?;
        prepare_network()?;
        self.phase("starting etcd and the API server")?;
        self.start_containerd()?;
        self.start_etcd()?;
        self.start_api_server()?;
        self.phase("starting the controllers")?;
        self.start_controller_manager()?;
        self.start_scheduler()?;
        self.phase("importing the node's image")?;
        self.import_node_image()?;
        self.phase("starting kubelet and kube-proxy")?;
        self.start_kubelet()?;
        self.start_kube_proxy()
    }

    fn phase(&self, what: &str) -> Result<()> {
        Phase::Starting(what.to_owned()).write(&self.state)
    }

    /// All daemons use their standard paths, on folders of the state; the host's own stay untouched.
    fn prepare_mounts(&self) -> Result<()> {
        // Peers of their own: mounts made inside reach containers, and never the host.
        mount(&["--make-rshared", "/"])?;
        mount(&["-t", "tmpfs", "-o", "mode=755", "metricsstore-run", "/run"])?;
        for dir in ["/run/netns", "/run/lock", "/run/containerd"] {
            places::create_dir(Path::new(dir))?;
        }
        for covered in host::COVERED {
            let (from, to) = (self.state.join("fs").join(covered), Path::new("/").join(covered));
            places::create_dir(&from)?;
            bind(&from, &to)?;
            mount(&["--make-rshared", &to.display().to_string()])?;
        }
        // Kubelet writes these host-wide values, which have no namespace: it gets files of its own instead.
        for (name, value) in [
            ("vm/overcommit_memory", "1"),
            ("vm/panic_on_oom", "0"),
            ("kernel/panic", "10"),
            ("kernel/panic_on_oops", "1"),
        ] {
            let file = self.state.join("fs/sysctl").join(name);
            places::write(&file, format!("{value}\n"))?;
            bind(&file, &Path::new("/proc/sys").join(name))?;
        }
        Ok(())
    }

    fn start_containerd(&mut self) -> Result<()> {
        let mut command = Command::new("containerd");
        command.arg("--config").arg(self.state.join("conf/containerd.toml"));
        self.daemon("containerd", command)
    }

    /// Plain HTTP on loopback, and no fsync: the state lives as long as the cluster.
    fn start_etcd(&mut self) -> Result<()> {
        let mut command = Command::new("etcd");
        command.arg(format!("--data-dir={}", self.state.join("etcd").display()));
        command.args([
            "--name=node-0",
            "--unsafe-no-fsync",
            "--logger=zap",
            "--log-level=warn",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=node-0=http://127.0.0.1:2380",
        ]);
        command.arg(format!("--listen-metrics-urls=http://{NODE_IP}:2381"));
        self.daemon("etcd", command)
    }

    fn start_api_server(&mut self) -> Result<()> {
        let mut command = Command::new("kube-apiserver");
        command.args([
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--profiling=false",
            "--v=1",
        ]);
        command.arg(format!("--advertise-address={NODE_IP}"));
        command.arg(format!("--service-cluster-ip-range={SERVICE_CIDR}"));
        for (flag, file) in [
            ("--tls-cert-file", "pki/apiserver.crt"),
            ("--tls-private-key-file", "pki/apiserver.key"),
            ("--client-ca-file", "pki/kubernetes-ca.crt"),
            ("--kubelet-client-certificate", "pki/apiserver-kubelet-client.crt"),
            ("--kubelet-client-key", "pki/apiserver-kubelet-client.key"),
            ("--kubelet-certificate-authority", "pki/kubernetes-ca.crt"),
            ("--service-account-key-file", "pki/sa.pub"),
            ("--service-account-signing-key-file", "pki/sa.key"),
            ("--requestheader-client-ca-file", "pki/front-proxy-ca.crt"),
            ("--proxy-client-cert-file", "pki/front-proxy-client.crt"),
            ("--proxy-client-key-file", "pki/front-proxy-client.key"),
            ("--audit-policy-file", "conf/audit.yaml"),
            ("--audit-log-path", super::AUDIT_LOG),
        ] {
            command.arg(self.flag(flag, file));
        }
        self.daemon("kube-apiserver", command)?;
        let kubeconfig = pki::admin_kubeconfig(&self.state.join("pki"));
        self.await_daemon("kube-apiserver", "the API server to be ready", || {
            program::succeeds(
                Command::new("kubectl").arg("--kubeconfig").arg(&kubeconfig).args(["get", "--raw=/readyz"]),
            )
        })
    }

    fn start_controller_manager(&mut self) -> Result<()> {
        let mut command = Command::new("kube-controller-manager");
        command.args(["--bind-address=0.0.0.0", "--leader-elect=false", "--profiling=false", "--v=1"]);
        command.args(["--use-service-account-credentials=true", "--allocate-node-cidrs=false"]);
        command.arg(format!("--service-cluster-ip-range={SERVICE_CIDR}"));
        command.arg(format!("--cluster-cidr={POD_CIDR}"));
        self.add_component_flags(&mut command, "controller-manager");
        for (flag, file) in [
            ("--root-ca-file", "pki/kubernetes-ca.crt"),
            ("--service-account-private-key-file", "pki/sa.key"),
            ("--cluster-signing-cert-file", "pki/kubernetes-ca.crt"),
            ("--cluster-signing-key-file", "pki/kubernetes-ca.key"),
            ("--requestheader-client-ca-file", "pki/front-proxy-ca.crt"),
        ] {
            command.arg(self.flag(flag, file));
        }
        self.daemon("kube-controller-manager", command)
    }

    fn start_scheduler(&mut self) -> Result<()> {
        let mut command = Command::new("kube-scheduler");
        command.args(["--bind-address=0.0.0.0", "--leader-elect=false", "--profiling=false", "--v=1"]);
        self.add_component_flags(&mut command, "scheduler");
        self.daemon("kube-scheduler", command)
    }

    /// A kubeconfig for its own work and for checking who reads its metrics, and the certificate to serve them with.
    fn add_component_flags(&self, command: &mut Command, user: &str) {
        let kubeconfig = format!("pki/{user}.kubeconfig");
        for flag in ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"] {
            command.arg(self.flag(flag, &kubeconfig));
        }
        command.arg(self.flag("--tls-cert-file", "pki/components.crt"));
        command.arg(self.flag("--tls-private-key-file", "pki/components.key"));
    }

    fn import_node_image(&mut self) -> Result<()> {
        self.await_daemon("containerd", "containerd to answer", || {
            program::succeeds(Command::new("ctr").arg("version"))
        })?;
        let mut command = Command::new("ctr");
        command.args(super::IMPORT).arg(super::node_image()?.archive);
        program::quiet("importing the node's image", &mut command, super::READ_LOGS).map(drop)
    }

    fn start_kubelet(&mut self) -> Result<()> {
        let mut command = Command::new("kubelet");
        command.arg(self.flag("--config", "conf/kubelet.yaml"));
        command.arg(self.flag("--kubeconfig", "pki/kubelet.kubeconfig"));
        command.arg(format!("--hostname-override={NODE}")).arg(format!("--node-ip={NODE_IP}")).arg("--v=2");
        self.daemon("kubelet", command)
    }

    fn start_kube_proxy(&mut self) -> Result<()> {
        let mut command = Command::new("kube-proxy");
        command.arg(self.flag("--config", "conf/kube-proxy.yaml"));
        command.arg(format!("--hostname-override={NODE}")).arg("--v=2");
        self.daemon("kube-proxy", command)
    }

    fn flag(&self, flag: &str, file: &str) -> String {
        format!("{flag}={}", self.state.join(file).display())
    }

    /// Starts a daemon with its output in `log/<name>.log`.
    fn daemon(&mut self, name: &'static str, mut command: Command) -> Result<()> {
        let path = self.log(name);
        let log = File::create(&path).map_err(Error::file("create", &path))?;
        let errors = log.try_clone().map_err(Error::file("share", &path))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn().map_err(|source| Error::Start {
            program: name.to_owned(),
            what: "the cluster".to_owned(),
            source,
            cure: "run `cargo xtask cluster up` again: it installs and builds what is missing".to_owned(),
        })?;
        self.daemons.push((name, child));
        Ok(())
    }

    /// Waits for a daemon's service, and fails at once with its last words when it ends instead.
    fn await_daemon(&mut self, name: &str, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let log = self.log(name);
        wait::until(what, Duration::from_mins(3), super::READ_LOGS, || {
            if ready() {
                return Ok(wait::Look::Done(()));
            }
            let daemon = self.daemons.iter_mut().find(|(daemon, _)| *daemon == name);
            let ended = daemon.and_then(|(_, child)| child.try_wait().ok().flatten());
            match ended {
                None => Ok(wait::Look::NotYet(format!("{name} runs and does not answer"))),
                Some(status) => Err(Error::Program {
                    what: name.to_owned(),
                    status: status.to_string(),
                    output: program::tail(&places::read(&log).unwrap_or_default(), 10),
                    cure: format!("read {}", log.display()),
                }),
            }
        })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.state.join("log").join(format!("{name}.log"))
    }

    /// Reaps orphans for as long as anything runs, and notes daemons that end: they are not meant to.
    fn reap(&mut self) {
        while let Ok(ended) = rustix::process::wait(rustix::process::WaitOptions::empty()) {
            let Some((pid, status)) = ended else { continue };
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            if let Some((name, _)) = self.daemons.iter().find(|(_, child)| child.id() == pid) {
                println!("{name} ended: {status:?}; its log is {}", self.log(name).display());
            }
        }
    }
}

/// Loopback and a pair of virtual links with both ends inside; the default route leads nowhere.
fn prepare_network() -> Result<()> {
    program::quiet("naming the node", Command::new("hostname").arg(NODE), super::READ_LOGS)?;
    let address = format!("{NODE_IP}/24");
    for arguments in [
        "link set lo up",
        "link add node0 type veth peer name node0x",
        "link set node0 up",
        "link set node0x up",
        &format!("addr add {address} dev node0"),
        "route add default dev node0",
    ] {
        let mut ip = Command::new("ip");
        program::quiet("preparing the cluster's network", ip.args(arguments.split(' ')), super::READ_LOGS)?;
    }
    for (name, value) in [
        ("net/ipv4/ip_forward", "1"),
        ("net/bridge/bridge-nf-call-iptables", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
    ] {
        let path = Path::new("/proc/sys").join(name);
        // The bridge's file is there only when the kernel has that part loaded; without it the bridge needs no setting.
        if path.exists() {
            std::fs::write(&path, value).map_err(Error::file("write", &path))?;
        }
    }
    Ok(())
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(&["--bind", &from.display().to_string(), &to.display().to_string()])
}

fn mount(arguments: &[&str]) -> Result<()> {
    program::quiet("mounting inside the cluster", Command::new("mount").args(arguments), super::READ_LOGS)
        .map(drop)
}
