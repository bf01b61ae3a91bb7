//! A store in a namespace of its own, and talking to its pods.
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metricsstore_e2e::bench::population::{Population, SERIES_PER_TARGET};
use metricsstore_e2e::bench::request::Request;
use metricsstore_e2e::bench::wire::{Answer, Connection};
use metricsstore_e2e::kubectl::{Kubectl, condition_status};
use metricsstore_e2e::wait::{self, Look};
use serde_json::{Value, json};

/// For everything that must come: the machine may be busy with other tests.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// What to do when something did not come.
pub const LOOK: &str = "look at the events of the namespace";

/// A store named `main`; its namespace goes away with it.
pub struct Store {
    pub kubectl: Kubectl<'static>,
    pub namespace: String,
}

impl Store {
    /// Applies a store and waits until it is Ready.
    pub fn ready(namespace: &str, spec: &Value) -> Self {
        let store = Self::applied(namespace, spec);
        store.wait_ready();
        store
    }

    /// Applies a store.
    pub fn applied(namespace: &str, spec: &Value) -> Self {
        let store = Self { kubectl: Kubectl::inside(), namespace: namespace.to_owned() };
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        store.kubectl.apply(&body.to_string()).unwrap();
        store.apply(spec);
        store
    }

    /// Replaces the spec.
    pub fn apply(&self, spec: &Value) {
        self.kubectl.apply(&manifest(&self.namespace, spec)).unwrap();
    }

    /// Merges into the spec.
    pub fn patch(&self, spec: &Value) {
        self.kubectl.patch(&self.namespace, "metricsstore/main", &json!({"spec": spec})).unwrap();
    }

    /// kubectl in the store's namespace.
    pub fn text(&self, arguments: &[&str]) -> String {
        self.kubectl.text(&[&["--namespace", &self.namespace], arguments].concat()).unwrap()
    }

    /// An object of the namespace.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        self.kubectl.json(&["get", kind, name, "--namespace", &self.namespace]).unwrap()
    }

    /// Waits for an object of the namespace.
    pub fn wait_for(&self, kind: &str, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.kubectl.wait_for(&[kind, name, "--namespace", &self.namespace], what, PATIENCE, holds).unwrap()
    }

    /// Waits until the operator has seen the spec as it is and calls it Ready.
    pub fn wait_ready(&self) -> Value {
        self.wait_for("metricsstore", "main", "the store to be Ready", |store| {
            observed(store) && condition_status(store, "Ready") == Some("True")
        })
    }

    /// Waits for a condition with this status; returns its message.
    pub fn wait_condition(&self, condition: &str, status: &str) -> String {
        let what = format!("{condition}={status}");
        let store = self.wait_for("metricsstore", "main", &what, |store| {
            observed(store) && condition_status(store, condition) == Some(status)
        });
        message(&store, condition)
    }

    /// The first pod.
    pub fn pod(&self) -> Value {
        self.get("pod", "main-0")
    }

    /// The first pod's web listener, waiting for its address.
    pub fn address(&self) -> SocketAddr {
        let pod = self.wait_for("pod", "main-0", "the pod's address", |pod| {
            pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["podIP"].is_string()
        });
        let ip: IpAddr = pod["status"]["podIP"].as_str().unwrap().parse().unwrap();
        SocketAddr::new(ip, 9090)
    }

    /// `data` of an API answer, waiting out restarts.
    pub fn api(&self, path: &str) -> Value {
        wait::until(path, PATIENCE, LOOK, || {
            let answer = Connection::open(self.address()).and_then(|mut connection| connection.get(path));
            Ok(match answer {
                Ok(answer) if answer.status == 200 => Look::Done(data(&answer)),
                Ok(answer) => Look::NotYet(text(&answer)),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
        .unwrap()
    }

    /// Runtime info of the first pod.
    pub fn runtime_info(&self) -> Value {
        self.api("/api/v1/status/runtimeinfo")
    }

    /// Waits until runtime info is as it should be.
    pub fn wait_runtime_info(&self, what: &str, deadline: Duration, holds: impl Fn(&Value) -> bool) -> Value {
        wait::until(what, deadline, LOOK, || {
            let info = self.runtime_info();
            Ok(if holds(&info) { Look::Done(info) } else { Look::NotYet(info.to_string()) })
        })
        .unwrap()
    }

    /// Result rows of an instant query.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let data = self.api(&format!("/api/v1/query?query={}", encoded(query)));
        data["result"].as_array().cloned().unwrap_or_default()
    }

    /// Identity and restarts of the first pod: the same value means that nothing restarted.
    pub fn incarnation(&self) -> (String, u64) {
        let pod = self.pod();
        let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap();
        (pod["metadata"]["uid"].as_str().unwrap().to_owned(), restarts)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // After a failure the namespace stays, for whoever looks.
        if !std::thread::panicking() {
            let _ = self.kubectl.text(&["delete", "namespace", &self.namespace, "--wait=false"]);
        }
    }
}

/// The YAML (a JSON document is one) of a store named `main`.
pub fn manifest(namespace: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "metricsstore.dev/v1alpha1",
        "kind": "MetricsStore",
        "metadata": {"name": "main", "namespace": namespace},
        "spec": spec,
    })
    .to_string()
}

/// A small spec to start from.
pub fn small() -> Value {
    json!({
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "storage": {"size": "256Mi"},
    })
}

/// The status is about the spec as it is.
pub fn observed(store: &Value) -> bool {
    store["status"]["observedGeneration"] == store["metadata"]["generation"]
}

/// A condition's message.
pub fn message(store: &Value, condition: &str) -> String {
    let conditions = store["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|entry| entry["type"] == condition);
    found.and_then(|entry| entry["message"].as_str()).unwrap_or_default().to_owned()
}

/// `data` of an API answer.
pub fn data(answer: &Answer) -> Value {
    let body: Value =
        serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", text(answer)));
    body["data"].clone()
}

/// Status and body for a message.
pub fn text(answer: &Answer) -> String {
    format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body))
}

/// For a query string: everything but letters and digits is escaped.
pub fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded + &char::from(byte).to_string()
        } else {
            encoded + &format!("%{byte:02X}")
        }
    })
}

/// A remote write request: one sample of every series of the targets.
pub fn write_request(
    population: &Population,
    targets: std::ops::Range<usize>,
    round: usize,
    timestamp_ms: i64,
) -> Vec<u8> {
    let lives = targets.map(|target| population.life_at(target, round));
    let series = lives.flat_map(|life| (0..SERIES_PER_TARGET).map(move |series| (life.clone(), series)));
    let mut request = Request::new(series.clone().map(|(life, series)| population.labels(&life, series)));
    for (index, (life, series)) in series.enumerate() {
        request.set(index, timestamp_ms, population.value(&life, series, round));
    }
    request.packed().to_vec()
}

/// The wall clock in milliseconds.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}
