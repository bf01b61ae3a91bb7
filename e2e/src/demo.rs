//! `cargo xtask demo`: the whole way from an empty machine to answered queries.
use std::time::Duration;

use serde_json::Value;

use crate::cluster;
use crate::kubectl::{Kubectl, condition_status};
use crate::wait::{self, Look};
use crate::{Error, Result, image, packages, places, progress, release};

/// What to ask, and what the answer tells.
const QUESTIONS: [(&str, &str); 5] = [
    ("which targets are up", "sum by (job) (up)"),
    ("requests to the API server per second, by verb", "sum by (verb) (rate(apiserver_request_total[1m]))"),
    (
        "99th percentile of the API server's answers, in seconds",
        "histogram_quantile(0.99, sum by (le) (rate(apiserver_request_duration_seconds_bucket{verb!=\"WATCH\"}[1m])))",
    ),
    (
        "memory of the largest pods, in bytes",
        "topk(3, sum by (pod) (container_memory_working_set_bytes{pod!=\"\"}))",
    ),
    ("series in this store", "prometheus_tsdb_head_series"),
];

/// Runs the demo; without `once` it stays until it is interrupted.
pub fn run(once: bool) -> Result<()> {
    progress::step("Debian packages", packages::ensure)?;
    packages::require_root("the demo's cluster")?;
    let _down = cluster::DownAtEnd::armed()?;
    let image = image::build()?;
    let cluster = cluster::up()?;
    cluster.import(&image.archive)?;
    release::install(&cluster, &image)?;
    let kubectl = cluster.kubectl();
    let manifest = places::read(&places::in_workspace("e2e/demo/store.yaml"))?;
    apply_store(&kubectl, &manifest)?;
    await_scrapes(&kubectl, manifest.matches("job_name:").count())?;
    println!("\n==> what the store knows about the cluster it runs in");
    for (meaning, query) in QUESTIONS {
        ask(&kubectl, meaning, query)?;
    }
    show(&kubectl)?;
    if !once {
        stay();
    }
    Ok(())
}

fn apply_store(kubectl: &Kubectl<'_>, manifest: &str) -> Result<()> {
    progress::step("apply a MetricsStore and wait until it is Ready", || {
        kubectl.apply(manifest)?;
        kubectl
            .wait_for(
                &["metricsstore", "main", "--namespace", "demo"],
                "the store to be Ready",
                Duration::from_mins(3),
                |store| {
                    condition_status(store, "Ready") == Some("True")
                        && store["status"]["observedGeneration"] == store["metadata"]["generation"]
                },
            )
            .map(drop)
    })
}

/// Waits until every job of the store's scrape configuration has a target that answers.
fn await_scrapes(kubectl: &Kubectl<'_>, jobs: usize) -> Result<()> {
    progress::step("wait until every target is scraped", || {
        answer(kubectl, "count(sum by (job) (up) > 0)", |rows| {
            rows.first().and_then(number).is_some_and(|up| up >= jobs as f64)
        })
        .map(drop)
    })
}

/// The row of the store, once its first figures are in.
fn show(kubectl: &Kubectl<'_>) -> Result<()> {
    let store = ["metricsstore", "main", "--namespace", "demo"];
    kubectl.wait_for(&store, "the store's first figures", Duration::from_mins(1), |store| {
        store["status"]["summary"]["series"].is_string()
    })?;
    println!("\n$ kubectl get metricsstores --all-namespaces");
    println!("{}", kubectl.text(&["get", "metricsstores", "--all-namespaces"])?.trim_end());
    Ok(())
}

/// Asks until there is a number in the answer: rates need two scrapes.
fn ask(kubectl: &Kubectl<'_>, meaning: &str, query: &str) -> Result<()> {
    let rows = answer(kubectl, query, |rows| rows.iter().any(|row| number(row).is_some_and(f64::is_finite)))?;
    println!("\n{meaning}\n  {query}");
    for row in rows.iter().take(8) {
        println!("    {:<50} {}", labels(&row["metric"]), row["value"][1].as_str().unwrap_or_default());
    }
    Ok(())
}

/// The rows of an instant query, asked again until they are as wanted.
fn answer(kubectl: &Kubectl<'_>, query: &str, wanted: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
    let path = format!(
        "/api/v1/namespaces/demo/services/main:9090/proxy/api/v1/query?query={}",
        percent_encoded(query)
    );
    let cure = "look at the targets: `cargo xtask cluster kubectl get --raw \
                /api/v1/namespaces/demo/services/main:9090/proxy/api/v1/targets`";
    wait::until(&format!("an answer to {query}"), Duration::from_secs(90), cure, || {
        let body = match kubectl.raw(&path) {
            Ok(body) => body,
            Err(error) => return Ok(Look::NotYet(error.to_string())),
        };
        let answer: Value = serde_json::from_str(&body)
            .map_err(|error| Error::Unreadable { what: path.clone(), detail: error.to_string() })?;
        let rows = answer["data"]["result"].as_array().filter(|rows| wanted(rows));
        Ok(rows.map_or_else(|| Look::NotYet(body.clone()), |rows| Look::Done(rows.clone())))
    })
}

fn number(row: &Value) -> Option<f64> {
    row["value"][1].as_str()?.parse().ok()
}

fn labels(metric: &Value) -> String {
    let pairs = metric.as_object().into_iter().flatten();
    let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

fn stay() {
    println!(
        "
==> the cluster stays up until Ctrl-C; in a second terminal:
    cargo xtask cluster kubectl get metricsstores --all-namespaces
    cargo xtask cluster kubectl --namespace demo describe metricsstore main
    cargo xtask cluster kubectl --namespace demo get pods,services,persistentvolumeclaims
    cargo xtask cluster kubectl --namespace demo edit metricsstore main
    cargo xtask cluster kubectl get --raw '/api/v1/namespaces/demo/services/main:9090/proxy/api/v1/query?query=up'"
    );
    cluster::until_interrupted();
}

/// For a query string: everything but letters and digits is escaped.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded + &char::from(byte).to_string()
        } else {
            encoded + &format!("%{byte:02X}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped_for_a_url() {
        assert_eq!(percent_encoded("up{a=\"b\"}"), "up%7Ba%3D%22b%22%7D");
    }
}
