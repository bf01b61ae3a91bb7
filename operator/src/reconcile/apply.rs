//! Apply: sends what differs, and only that. A dry run of everything that differs comes first, so that a refusal by the
//! API server changes nothing at all.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use metricsstore_contract::content_hash;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Existing, Refusal};
use crate::context::Context;
use crate::error::Error;
use crate::plan::canonical::canonical_json;
use crate::plan::diff::first_difference;
use crate::plan::{Children, names};
use k8s_openapi::api::apps::v1::StatefulSet;

/// What applying came to.
#[derive(Debug)]
pub enum Applied {
    /// Everything is there as planned.
    Done {
        /// The StatefulSet as it is now.
        statefulset: Box<StatefulSet>,
        /// What was written, in words; empty when nothing differed.
        changes: Vec<String>,
    },
    /// The API server refused the plan; nothing was written.
    Refused(Refusal),
}

/// Brings all children to what is planned.
pub async fn apply(
    ctx: &Context,
    namespace: &str,
    children: Children,
    existing: &Existing,
) -> Result<Applied, Error> {
    // No `..`: a kind that is forgotten here does not compile.
    let Children { service_account, ops, scrape, config_map, web, pods, statefulset } = children;
    let mut service_account = Work::new(ctx, namespace, service_account, existing.service_account.as_ref())?;
    let mut ops = Work::new(ctx, namespace, ops, existing.ops.as_ref())?;
    let mut scrape = Work::new(ctx, namespace, scrape, existing.scrape.as_ref())?;
    let mut config_map = Work::new(ctx, namespace, config_map, existing.config_map.as_ref())?;
    let mut web = Work::new(ctx, namespace, web, existing.web.as_ref())?;
    let mut pods = Work::new(ctx, namespace, pods, existing.pods.as_ref())?;
    let mut statefulset = Work::new(ctx, namespace, statefulset, existing.statefulset.as_ref())?;

    macro_rules! each {
        ($call:ident) => {
            // The StatefulSet comes last: its pods mount and name the others.
            [
                service_account.$call().await?,
                ops.$call().await?,
                scrape.$call().await?,
                config_map.$call().await?,
                web.$call().await?,
                pods.$call().await?,
                statefulset.$call().await?,
            ]
        };
    }
    if let Some(refusal) = each!(dry_run).into_iter().flatten().next() {
        return Ok(Applied::Refused(refusal));
    }
    let changes = each!(write).into_iter().flatten().collect();
    let statefulset = Box::new(statefulset.current().await?);
    Ok(Applied::Done { statefulset, changes })
}

/// One child: what is wanted, what is there, and why they differ.
struct Work<K> {
    api: Api<K>,
    ctx: Context,
    wanted: Value,
    name: String,
    difference: Option<String>,
    existing: Option<K>,
    /// Lists are overwritten instead of merged by key.
    overwrite: bool,
}

impl<K> Work<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    fn new(ctx: &Context, namespace: &str, wanted: K, existing: Option<&K>) -> Result<Self, Error> {
        let name = wanted.name_any();
        let plain = serde_json::to_value(wanted).map_err(Error::Encode)?;
        let wanted = stamped(plain.clone());
        let found = existing.map(serde_json::to_value).transpose().map_err(Error::Encode)?;
        let difference = match &found {
            None => Some("missing".to_owned()),
            Some(found) => explain(&K::kind(&()), &plain, &wanted, found),
        };
        let api = Api::namespaced(ctx.client.clone(), namespace);
        Ok(Work {
            api,
            ctx: ctx.clone(),
            wanted,
            name,
            difference,
            existing: existing.cloned(),
            overwrite: false,
        })
    }

    async fn send(&self, dry_run: bool) -> kube::Result<K> {
        if self.overwrite {
            let manager = Some(names::FIELD_MANAGER.to_owned());
            let params = PatchParams { dry_run, field_manager: manager, ..PatchParams::default() };
            return self.api.patch(&self.name, &params, &Patch::Merge(&self.wanted)).await;
        }
        let params = PatchParams { dry_run, ..PatchParams::apply(names::FIELD_MANAGER).force() };
        self.api.patch(&self.name, &params, &Patch::Apply(&self.wanted)).await
    }

    /// The API server's refusal; `None` when it would take it, or when nothing differs.
    async fn dry_run(&mut self) -> Result<Option<Refusal>, Error> {
        if self.difference.is_none() {
            return Ok(None);
        }
        let kind = K::kind(&());
        let refusal = match self.send(true).await {
            Ok(_) => return Ok(None),
            Err(kube::Error::Api(status)) if is_refusal(status.code) => status,
            Err(error) => return Err(Error::write(&kind, &self.name)(error)),
        };
        // Somebody's port under our port's name: ports are merged by number, so applying would leave both.
        if kind == "Service" && self.existing.is_some() && !self.overwrite {
            self.overwrite = true;
            if self.send(true).await.is_ok() {
                return Ok(None);
            }
        }
        Ok(Some(Refusal::new(
            "PlanRefused",
            format!(
                "the API server refuses {kind} {}: {}. Nothing was changed; correct the spec or what forbids it",
                self.name, refusal.message
            ),
        )))
    }

    /// What was written, in words.
    async fn write(&self) -> Result<Option<String>, Error> {
        let Some(difference) = &self.difference else { return Ok(None) };
        let kind = K::kind(&());
        self.ctx.metrics.wrote(&kind);
        self.send(false).await.map_err(Error::write(&kind, &self.name))?;
        let name = &self.name;
        Ok(Some(match self.existing {
            None => format!("{kind} {name} created"),
            Some(_) => format!("{kind} {name} updated ({difference})"),
        }))
    }

    /// The object as it is now.
    async fn current(self) -> Result<K, Error> {
        match (self.difference, self.existing) {
            (None, Some(existing)) => Ok(existing),
            _ => self.api.get(&self.name).await.map_err(Error::read(&K::kind(&()), &self.name)),
        }
    }
}

/// Why an object is written again, in words that may go into an event.
fn explain(kind: &str, plain: &Value, stamped: &Value, found: &Value) -> Option<String> {
    match first_difference(plain, found) {
        // What is in a Secret is told to nobody.
        Some(_) if kind == "Secret" => Some("its contents changed".into()),
        // A hash that differs says less than what it is the hash of.
        Some(difference) => first_difference(&without_hashes(plain), found).or(Some(difference)),
        None => first_difference(stamped, found).map(|_| "a field is no longer wanted".into()),
    }
}

fn without_hashes(plain: &Value) -> Value {
    let mut plain = plain.clone();
    if let Some(meta) = plain.pointer_mut("/spec/template/metadata").and_then(Value::as_object_mut) {
        meta.remove("annotations");
    }
    plain
}

/// 4xx, but for what passes by itself: a conflict, too many requests, a time-out, an object that is being created.
fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 404 | 408 | 409 | 429)
}

/// Notes the hash of what is applied on the object. What is compared is only what is wanted now; the hash finds fields that
/// were wanted once.
fn stamped(mut wanted: Value) -> Value {
    let hash = content_hash(canonical_json(&wanted).as_bytes());
    if let Some(meta) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = meta.entry("annotations").or_insert_with(|| Value::Object(serde_json::Map::new()));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(names::APPLIED.to_owned(), Value::String(hash));
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_told_and_dropped_fields_are_noticed() {
        let wanted =
            |data: &str| serde_json::json!({ "metadata": { "name": "a" }, "data": { "token": data } });
        let found = stamped(wanted("b2xk"));
        let told = explain("Secret", &wanted("bmV3"), &stamped(wanted("bmV3")), &found).unwrap();
        assert!(!told.contains("bmV3") && !told.contains("b2xk"), "{told}");
        assert_eq!(explain("Secret", &wanted("b2xk"), &found, &found), None);
        let mut without = wanted("b2xk");
        without["data"] = serde_json::json!({});
        let told = explain("ConfigMap", &without, &stamped(without.clone()), &found);
        assert_eq!(told.as_deref(), Some("a field is no longer wanted"));
    }

    #[test]
    fn what_passes_by_itself_is_no_refusal() {
        assert!(is_refusal(422) && is_refusal(400) && is_refusal(403));
        assert!(!is_refusal(409) && !is_refusal(429) && !is_refusal(500) && !is_refusal(404));
    }
}
