//! Who the pods are. Rights to scrape are bound to it by whoever owns the targets.

use k8s_openapi::api::core::v1::ServiceAccount;

use crate::plan::names;
use crate::reconcile::Valid;

pub fn render(valid: &Valid) -> ServiceAccount {
    ServiceAccount { metadata: names::child(valid, valid.name.clone()), ..ServiceAccount::default() }
}
