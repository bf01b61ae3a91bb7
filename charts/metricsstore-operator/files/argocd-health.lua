-- Health of a MetricsStore for Argo CD. Put it into the ConfigMap argocd-cm under
-- resource.customizations.health.metricsstore.dev_MetricsStore (see docs/gitops.md).
local health = { status = "Progressing", message = "waiting for the operator" }
if obj.spec ~= nil and obj.spec.paused == true then
  return { status = "Suspended", message = "spec.paused is true" }
end
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local ready = nil
for _, condition in ipairs(obj.status.conditions or {}) do
  if (condition.type == "Stalled" or condition.type == "Degraded") and condition.status == "True" then
    return { status = "Degraded", message = condition.reason .. ": " .. condition.message }
  end
  if condition.type == "Ready" then
    ready = condition
  end
end
if ready ~= nil then
  health.message = ready.reason .. ": " .. ready.message
  if ready.status == "True" then
    health.status = "Healthy"
  end
end
return health
