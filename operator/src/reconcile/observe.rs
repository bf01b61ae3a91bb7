//! Observe: everything is read afresh from the API server. A read that fails ends the reconcile; only "not found" is
//! absent. Engines are asked too, but they may be silent.

use std::collections::BTreeMap;

use futures::future::{join_all, try_join_all};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use metricsstore_contract::RuntimeInfo;
use metricsstore_crds::{MetricsStore, ScrapeConfig};

use crate::context::Context;
use crate::error::Error;
use crate::plan::names;
use crate::reconcile::Refusal;

/// A store and everything around it, at one moment.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The store itself, not from a cache.
    pub store: MetricsStore,
    /// Its children.
    pub existing: Existing,
    /// Pods of its StatefulSet.
    pub pods: Vec<Pod>,
    /// Claims of its pods, also of pods that are gone.
    pub claims: Vec<PersistentVolumeClaim>,
    /// The scrape configurations it names, in its order.
    pub pieces: Vec<Piece>,
    /// What the engines say, by pod.
    pub engines: BTreeMap<String, Result<RuntimeInfo, String>>,
}

/// Children that exist, ours or not.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Existing {
    pub service_account: Option<ServiceAccount>,
    pub ops: Option<Secret>,
    pub scrape: Option<Secret>,
    pub config_map: Option<ConfigMap>,
    pub web: Option<Service>,
    pub pods: Option<Service>,
    pub statefulset: Option<StatefulSet>,
}

/// A scrape configuration that a store names.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Where it is.
    pub source: Source,
    /// Its contents, or why there are none and the cure.
    pub content: Result<Vec<u8>, Refusal>,
}

/// A key of a Secret or a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Which of the two.
    pub kind: SourceKind,
    /// The object's name.
    pub name: String,
    /// The key of its data.
    pub key: String,
}

/// Where a scrape configuration may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl SourceKind {
    /// The kind's name.
    pub const fn word(self) -> &'static str {
        match self {
            SourceKind::Secret => "Secret",
            SourceKind::ConfigMap => "ConfigMap",
        }
    }
}

/// The sources of a store, in its order. An entry that names neither object is passed over: the API server refuses it.
pub fn sources(store: &MetricsStore) -> Vec<Source> {
    let configs = store.spec.scrape.iter().filter_map(|scrape| scrape.configs.as_ref()).flatten();
    configs.filter_map(source).collect()
}

fn source(config: &ScrapeConfig) -> Option<Source> {
    let (kind, at) = match (&config.secret, &config.config_map) {
        (Some(at), _) => (SourceKind::Secret, at),
        (None, Some(at)) => (SourceKind::ConfigMap, at),
        (None, None) => return None,
    };
    Some(Source { kind, name: at.name.clone(), key: at.key.clone() })
}

/// Reads everything; `None` when the store is gone.
pub async fn observe(ctx: &Context, namespace: &str, name: &str) -> Result<Option<Seen>, Error> {
    let stores: Api<MetricsStore> = Api::namespaced(ctx.client.clone(), namespace);
    let Some(store) = stores.get_opt(name).await.map_err(Error::read("MetricsStore", name))? else {
        return Ok(None);
    };
    let existing = existing(ctx, namespace, name).await?;
    let own = ListParams::default().labels(&format!("{}={name}", names::STORE_LABEL));
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    let pods = pods.list(&own).await.map_err(Error::read("pods of", name))?.items;
    let pods = owned_pods(pods, existing.statefulset.as_ref());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), namespace);
    let mut claims = claims.list(&own).await.map_err(Error::read("claims of", name))?.items;
    let prefix = format!("{}-{name}-", names::DATA);
    claims.retain(|claim| claim.name_any().starts_with(&prefix));
    let pieces =
        try_join_all(sources(&store).into_iter().map(|source| piece(ctx, namespace, source))).await?;
    let engines = ask(ctx, &pods).await;
    Ok(Some(Seen { store, existing, pods, claims, pieces, engines }))
}

async fn existing(ctx: &Context, namespace: &str, name: &str) -> Result<Existing, Error> {
    async fn get<K>(ctx: &Context, namespace: &str, name: String) -> Result<Option<K>, Error>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(ctx.client.clone(), namespace);
        api.get_opt(&name).await.map_err(Error::read(&K::kind(&()), &name))
    }
    let (service_account, ops, scrape, config_map, web, pods, statefulset) = futures::try_join!(
        get(ctx, namespace, name.to_owned()),
        get(ctx, namespace, names::ops_secret(name)),
        get(ctx, namespace, names::scrape_secret(name)),
        get(ctx, namespace, name.to_owned()),
        get(ctx, namespace, name.to_owned()),
        get(ctx, namespace, names::pods_service(name)),
        get(ctx, namespace, name.to_owned()),
    )?;
    Ok(Existing { service_account, ops, scrape, config_map, web, pods, statefulset })
}

/// Labels can be copied by anyone; only pods whose controller is this StatefulSet are ours.
fn owned_pods(pods: Vec<Pod>, statefulset: Option<&StatefulSet>) -> Vec<Pod> {
    let Some(uid) = statefulset.and_then(|set| set.metadata.uid.as_deref()) else { return vec![] };
    let owned = |pod: &Pod| pod.owner_references().iter().any(|owner| owner.uid == uid);
    let mut pods: Vec<Pod> = pods.into_iter().filter(owned).collect();
    pods.sort_by_key(ResourceExt::name_any);
    pods
}

/// Whether an object can have this name. Anything else would be a part of the request's path.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(plain)
        && name.ends_with(plain)
        && name.chars().all(|c| plain(c) || matches!(c, '-' | '.'))
}

fn missing(problem: String) -> Refusal {
    Refusal::new("ScrapeConfigMissing", problem)
}

/// An engine has no verdict on what it cannot read: it would be waited for in vain.
fn as_text(source: &Source, content: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    String::from_utf8(content).map(String::into_bytes).map_err(|error| {
        let (kind, at) = (source.kind.word(), error.utf8_error().valid_up_to());
        Refusal::new(
            "ScrapeConfigInvalid",
            format!(
                "{kind} {}, {} is not text in UTF-8 (from byte {at} on): store the YAML as it is, neither compressed nor \
                 encoded",
                source.name, source.key
            ),
        )
    })
}

async fn piece(ctx: &Context, namespace: &str, source: Source) -> Result<Piece, Error> {
    let (kind, name) = (source.kind.word(), &source.name);
    if !is_name(name) {
        let problem = format!("no {kind} can have the name {name:?}: correct spec.scrape.configs");
        return Ok(Piece { source, content: Err(missing(problem)) });
    }
    let content = match source.kind {
        SourceKind::Secret => {
            let api: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
            let secret = api.get_opt(name).await.map_err(Error::read(kind, name))?;
            secret.map(|secret| secret.data.unwrap_or_default().remove(&source.key).map(|bytes| bytes.0))
        }
        SourceKind::ConfigMap => {
            let api: Api<ConfigMap> = Api::namespaced(ctx.client.clone(), namespace);
            let map = api.get_opt(name).await.map_err(Error::read(kind, name))?;
            map.map(|map| {
                let text = map.data.unwrap_or_default().remove(&source.key).map(String::into_bytes);
                text.or_else(|| map.binary_data.unwrap_or_default().remove(&source.key).map(|bytes| bytes.0))
            })
        }
    };
    let content = match content {
        Some(Some(content)) => as_text(&source, content),
        Some(None) => Err(missing(format!(
            "{kind} {name} has no key {}: add it, or correct spec.scrape.configs",
            source.key
        ))),
        None => Err(missing(format!(
            "{kind} {name} does not exist in {namespace}: create it, or correct spec.scrape.configs"
        ))),
    };
    Ok(Piece { source, content })
}

/// Asks the engine of every pod that has an address, ready or not.
async fn ask(ctx: &Context, pods: &[Pod]) -> BTreeMap<String, Result<RuntimeInfo, String>> {
    let asked = pods.iter().filter_map(|pod| {
        let address = pod.status.as_ref()?.pod_ip.clone()?;
        Some(async move { (pod.name_any(), ctx.engines.runtime_info(&address).await) })
    });
    join_all(asked).await.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_never_reaches_an_engine() {
        let source = Source { kind: SourceKind::Secret, name: "a".into(), key: "b".into() };
        assert_eq!(as_text(&source, "- job_name: ä".into()), Ok("- job_name: ä".into()));
        let refusal = as_text(&source, vec![b'-', 0x1f, 0x8b]).unwrap_err();
        assert_eq!(refusal.reason, "ScrapeConfigInvalid");
        assert!(
            refusal.message.starts_with("Secret a, b is not text in UTF-8 (from byte 2 on)"),
            "{refusal}"
        );
    }

    #[test]
    fn only_names_are_asked_for() {
        assert!(is_name("a") && is_name("my-targets.v2") && is_name("0"));
        for path in ["", "..", "../../other/secrets/a", "a/status", "a?watch=true", "A", "a.", "-a"] {
            assert!(!is_name(path), "{path}");
        }
    }
}
