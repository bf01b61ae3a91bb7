//! Go programs built from checksum-pinned modules (`e2e/tools/*/go.{mod,sum}`), cached by what they are built from.
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result, places, program, progress};

/// One `go build`: the programs of one module that share their flags.
pub struct Tool {
    /// Folder below `e2e/tools`.
    module: &'static str,
    /// First part of the cache folder's name.
    name: &'static str,
    /// Second part; the module file decides what is really built.
    version: &'static str,
    /// Name of each program and the Go package it is.
    programs: &'static [(&'static str, &'static str)],
    /// `-tags`.
    tags: &'static str,
    /// `-X` settings: package variable and value.
    variables: &'static [(&'static str, &'static str)],
    /// Built with cgo; otherwise static and without.
    cgo: bool,
}

/// The version of Kubernetes and of its kubectl.
pub const KUBERNETES_VERSION: &str = "v1.34.4";

/// Kubernetes' five daemons and the kubectl of the same version.
pub const KUBERNETES: Tool = Tool {
    module: "kubernetes",
    name: "kubernetes",
    version: KUBERNETES_VERSION,
    programs: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    tags: "",
    // What Kubernetes' own build sets; without it every component calls itself v0.0.0. The commit is not in the module.
    variables: &[
        ("k8s.io/client-go/pkg/version.gitMajor", "1"),
        ("k8s.io/client-go/pkg/version.gitMinor", "34"),
        ("k8s.io/client-go/pkg/version.gitVersion", KUBERNETES_VERSION),
        ("k8s.io/client-go/pkg/version.gitCommit", "0000000000000000000000000000000000000000"),
        ("k8s.io/client-go/pkg/version.gitTreeState", "clean"),
        ("k8s.io/client-go/pkg/version.buildDate", "1970-01-01T00:00:00Z"),
        ("k8s.io/component-base/version.gitMajor", "1"),
        ("k8s.io/component-base/version.gitMinor", "34"),
        ("k8s.io/component-base/version.gitVersion", KUBERNETES_VERSION),
        ("k8s.io/component-base/version.gitCommit", "0000000000000000000000000000000000000000"),
        ("k8s.io/component-base/version.gitTreeState", "clean"),
        ("k8s.io/component-base/version.buildDate", "1970-01-01T00:00:00Z"),
    ],
    cgo: false,
};

/// Dynamic volumes; in the module of Kubernetes because it shares that client library.
pub const LOCAL_PATH: Tool = Tool {
    module: "kubernetes",
    name: "local-path-provisioner",
    version: "v0.0.30",
    programs: &[("local-path-provisioner", "github.com/rancher/local-path-provisioner")],
    tags: "",
    variables: &[("main.VERSION", "v0.0.30")],
    cgo: false,
};

/// The API server's store.
pub const ETCD: Tool = Tool {
    module: "etcd",
    name: "etcd",
    version: "v3.6.16",
    programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    tags: "",
    variables: &[],
    cgo: false,
};

/// Cluster DNS with the plugins a cluster needs.
pub const COREDNS: Tool = Tool {
    module: "coredns",
    name: "coredns",
    version: "v1.14.7",
    programs: &[("coredns", ".")],
    tags: "",
    variables: &[],
    cgo: false,
};

/// The first process of every pod.
pub const PAUSE: Tool = Tool {
    module: "pause",
    name: "pause",
    version: "v1",
    programs: &[("pause", ".")],
    tags: "",
    variables: &[],
    cgo: false,
};

/// Installs the operator's chart.
pub const HELM: Tool = Tool {
    module: "helm",
    name: "helm",
    version: "v4.3.1",
    programs: &[("helm", "helm.sh/helm/v4/cmd/helm")],
    tags: "",
    variables: &[("helm.sh/helm/v4/internal/version.version", "v4.3.1")],
    cgo: false,
};

/// The engine that ours is compared with. Service discovery of clouds is left out: it is half of the build and idle here.
pub const PROMETHEUS: Tool = Tool {
    module: "prometheus",
    name: "prometheus",
    version: "v0.316.0",
    programs: &[
        ("prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
        ("promtool", "github.com/prometheus/prometheus/cmd/promtool"),
    ],
    tags: "remove_all_sd",
    variables: &[
        ("github.com/prometheus/common/version.Version", "3.16.0"),
        ("github.com/prometheus/common/version.Revision", "unknown"),
    ],
    cgo: false,
};

/// The other engine that ours is compared with, single-node. With cgo, as its releases are built: it compresses with the
/// C library then, which is faster.
pub const VICTORIA_METRICS: Tool = Tool {
    module: "victoriametrics",
    name: "victoria-metrics",
    version: "v1.151.0",
    programs: &[("victoria-metrics", "github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics")],
    tags: "",
    variables: &[(
        "github.com/VictoriaMetrics/VictoriaMetrics/lib/buildinfo.Version",
        "victoria-metrics-v1.151.0",
    )],
    cgo: true,
};

/// Ships blocks to object stores and verifies them there.
pub const THANOS: Tool = Tool {
    module: "thanos",
    name: "thanos",
    version: "v0.42.2",
    programs: &[("thanos", "github.com/thanos-io/thanos/cmd/thanos")],
    tags: "",
    variables: &[("github.com/prometheus/common/version.Version", "0.42.2")],
    cgo: false,
};

/// All that a cluster is made of and handled with.
pub const CLUSTER: &[&Tool] = &[&KUBERNETES, &LOCAL_PATH, &ETCD, &COREDNS, &PAUSE, &HELM];

impl Tool {
    /// Builds the programs unless the cache has them; returns the folder they are in.
    pub fn ensure(&self) -> Result<PathBuf> {
        let dir = self.dir()?;
        if self.programs.iter().all(|(name, _)| dir.join(name).is_file()) {
            return Ok(dir);
        }
        let _lock = places::lock("go-build")?;
        progress::step(&format!("build {} {}", self.name, self.version), || self.build(&dir))?;
        Ok(dir)
    }

    /// The path of one of the programs, built if need be.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        Ok(self.ensure()?.join(name))
    }

    /// A short name of exactly what is built: another one means other programs.
    pub fn identity(&self) -> Result<String> {
        let module = self.module_dir();
        let mut recipe = format!("{:?} {:?} {}", self.programs, self.variables, self.tags);
        if self.cgo {
            recipe += " cgo";
        }
        for file in ["go.mod", "go.sum", "main.go"] {
            let path = module.join(file);
            if path.exists() {
                recipe += &places::read(&path)?;
            }
        }
        let hash = xxhash_rust::xxh3::xxh3_64(recipe.as_bytes());
        Ok(format!("{}-{}-{hash:016x}", self.name, self.version))
    }

    /// Where the programs are once built.
    pub fn dir(&self) -> Result<PathBuf> {
        Ok(places::cache()?.join("bin").join(self.identity()?))
    }

    fn module_dir(&self) -> PathBuf {
        places::in_workspace("e2e/tools").join(self.module)
    }

    /// Builds beside the final folder and moves it there when complete.
    fn build(&self, dir: &Path) -> Result<()> {
        let partial = dir.with_extension("partial");
        if partial.exists() {
            std::fs::remove_dir_all(&partial).map_err(Error::file("remove", &partial))?;
        }
        places::create_dir(&partial)?;
        // Several packages go into a folder under their own names; a single one is named here (`.../server/v3` is `etcd`).
        let output = match self.programs {
            [(name, _)] => partial.join(name),
            _ => partial.join(""),
        };
        let mut go = go(&self.module_dir(), self.cgo);
        go.arg("build").args(["-trimpath", "-mod=readonly", "-buildvcs=false"]);
        go.arg(format!("-ldflags={}", self.ldflags())).arg("-tags").arg(self.tags);
        go.arg("-o").arg(output).args(self.programs.iter().map(|(_, package)| package));
        program::shown(
            &format!("go build of {}", self.name),
            &mut go,
            "see above; Go 1.26 or newer and a reachable Go module proxy are needed",
        )?;
        if dir.exists() {
            std::fs::remove_dir_all(dir).map_err(Error::file("remove", dir))?;
        }
        std::fs::rename(&partial, dir).map_err(Error::file("rename into", dir))
    }

    fn ldflags(&self) -> String {
        let settings = self.variables.iter().map(|(name, value)| format!(" -X {name}={value}"));
        "-s -w".to_owned() + &settings.collect::<String>()
    }
}

/// `go` in a module's folder; a workspace file around the checkout must not reach in.
fn go(module: &Path, cgo: bool) -> Command {
    let mut command = Command::new("go");
    command.current_dir(module).env("CGO_ENABLED", if cgo { "1" } else { "0" }).env("GOWORK", "off");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_pinned_module_and_an_identity_of_its_own() {
        let all = [
            &KUBERNETES,
            &LOCAL_PATH,
            &ETCD,
            &COREDNS,
            &PAUSE,
            &HELM,
            &PROMETHEUS,
            &VICTORIA_METRICS,
            &THANOS,
        ];
        let mut identities: Vec<String> = all.iter().map(|tool| tool.identity().unwrap()).collect();
        identities.sort();
        identities.dedup();
        assert_eq!(identities.len(), all.len());
        for tool in all {
            let module = places::read(&tool.module_dir().join("go.mod")).unwrap();
            let imported = tool.programs.iter().any(|(_, package)| *package != ".");
            assert!(!imported || module.contains(tool.version), "{} {}", tool.name, tool.version);
        }
    }
}
