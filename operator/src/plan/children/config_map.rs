//! ConfigMap: `engine.yaml`, what changes without a restart.

use k8s_openapi::api::core::v1::ConfigMap;

use super::RenderError;
use crate::plan::storage::Storage;
use crate::plan::{names, sizing};
use crate::reconcile::Valid;

pub fn render(valid: &Valid, storage: &Storage) -> Result<ConfigMap, RenderError> {
    let yaml = serde_yaml_ng::to_string(&sizing::engine_config(valid, storage.effective))
        .map_err(|source| RenderError { what: names::ENGINE_FILE, source })?;
    Ok(ConfigMap {
        metadata: names::child(valid, valid.name.clone()),
        data: Some([(names::ENGINE_FILE.to_owned(), yaml)].into()),
        ..ConfigMap::default()
    })
}
