//! Claims against the wanted size. A claim is never touched by this version; what does not fit is said.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use metricsstore_contract::Quantity;

use crate::reconcile::{Refusal, Valid};

/// What the volumes come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// The size in the claim template. It cannot change while the StatefulSet exists.
    pub template: Quantity,
    /// The size in force: the smallest claim, or the template's while there is none.
    pub effective: Quantity,
    /// Why the wanted size is not in force.
    pub refusal: Option<Refusal>,
}

/// Decides from the StatefulSet and the claims that exist.
pub fn plan(valid: &Valid, statefulset: Option<&StatefulSet>, claims: &[PersistentVolumeClaim]) -> Storage {
    let wanted = valid.storage_size;
    let sizes: Vec<(Quantity, &str)> = claims.iter().filter_map(claim_size).collect();
    let extremes = Extremes {
        smallest: sizes.iter().min().copied(),
        // Of several that are as large, the first by name.
        largest: sizes.iter().copied().min_by_key(|(size, name)| (std::cmp::Reverse(*size), *name)),
    };
    let largest = extremes.largest.map_or(wanted, |(size, _)| size.max(wanted));
    let template = statefulset.and_then(template_size).unwrap_or(largest);
    Storage {
        template,
        effective: extremes.smallest.map_or(template, |(size, _)| size),
        refusal: refusal(valid, template, &extremes),
    }
}

/// The smallest and the largest claim with their names.
struct Extremes<'a> {
    smallest: Option<(Quantity, &'a str)>,
    largest: Option<(Quantity, &'a str)>,
}

fn refusal(valid: &Valid, template: Quantity, extremes: &Extremes) -> Option<Refusal> {
    let (wanted, namespace) = (valid.storage_size, &valid.namespace);
    if let Some((size, claim)) = extremes.largest.filter(|(size, _)| *size > wanted) {
        return Some(Refusal::new(
            "StorageCannotShrink",
            format!(
                "storage.size {wanted} is below the claim {claim} ({size}); volumes cannot shrink: set {size} or restore \
                 into a new store. Everything else in the spec is applied"
            ),
        ));
    }
    if let Some((size, claim)) = extremes.smallest.filter(|(size, _)| *size < wanted) {
        return Some(Refusal::new(
            "StorageNotGrown",
            format!(
                "storage.size {wanted} is above the claim {claim} ({size}); this version does not grow claims: set {size}, or \
                 grow it with: kubectl patch pvc {claim} -n {namespace} -p '{{\"spec\":{{\"resources\":{{\"requests\":{{\"storage\":\"{wanted}\"}}}}}}}}'. \
                 Everything else in the spec is applied"
            ),
        ));
    }
    (extremes.smallest.is_none() && template != wanted).then(|| {
        Refusal::new(
            "StorageFrozen",
            format!("storage.size {wanted} cannot be applied while the StatefulSet asks for {template}: set {template}, or delete the StatefulSet to have it made anew"),
        )
    })
}

/// What a claim asks for and what it has got, whichever is larger.
fn claim_size(claim: &PersistentVolumeClaim) -> Option<(Quantity, &str)> {
    let requested = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let value = |text: &str| Quantity::parse(text).ok();
    // A provisioner may round the volume up; what was asked for is what the spec is compared with.
    let size = value(&requested.0).or_else(|| value(&capacity?.0))?;
    Some((size, claim.metadata.name.as_deref().unwrap_or("?")))
}

fn template_size(statefulset: &StatefulSet) -> Option<Quantity> {
    let template = statefulset.spec.as_ref()?.volume_claim_templates.as_ref()?.first()?;
    claim_size(template).map(|(size, _)| size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn claim(name: &str, size: &str) -> PersistentVolumeClaim {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": name }, "spec": { "resources": { "requests": { "storage": size } } }
        }))
        .unwrap()
    }

    fn decide(wanted: &str, claims: &[PersistentVolumeClaim]) -> Storage {
        let spec = format!("resources: {{ limits: {{ memory: 1Gi }} }}, storage: {{ size: {wanted} }}");
        plan(&fixtures::valid(&spec), None, claims)
    }

    #[test]
    fn a_fresh_store_gets_what_it_asks_for() {
        let storage = decide("50Gi", &[]);
        assert_eq!((storage.template.to_string(), storage.refusal), ("50Gi".into(), None));
    }

    #[test]
    fn a_size_below_the_claim_is_refused_with_the_cure_and_the_claim_stays_in_force() {
        let storage = decide("20Gi", &[claim("data-main-0", "50Gi")]);
        let refusal = storage.refusal.unwrap();
        assert_eq!(refusal.reason, "StorageCannotShrink");
        assert!(
            refusal.message.starts_with("storage.size 20Gi is below the claim data-main-0 (50Gi)"),
            "{refusal}"
        );
        assert_eq!(storage.effective.to_string(), "50Gi");
        assert_eq!(storage.template.to_string(), "50Gi");
    }

    #[test]
    fn a_larger_size_says_how_to_grow_the_claim() {
        let refusal = decide("100Gi", &[claim("data-main-0", "50Gi")]).refusal.unwrap();
        assert_eq!(refusal.reason, "StorageNotGrown");
        assert!(refusal.message.contains("kubectl patch pvc data-main-0"), "{refusal}");
    }

    #[test]
    fn another_spelling_of_the_same_size_is_no_change() {
        assert_eq!(decide("1024Mi", &[claim("data-main-0", "1Gi")]).refusal, None);
    }
}
