# A service account per role, without keys. A role on a resource is in the module of the resource. Here are the roles on the project.

variable "project" { type = string }
variable "service" { type = string }

locals {
  accounts = {
    all       = var.service
    api       = "${var.service}-api"
    publisher = "${var.service}-publisher"
    projector = "${var.service}-projector"
    migrate   = "${var.service}-migrate"
  }
}

resource "google_service_account" "this" {
  for_each     = local.accounts
  project      = var.project
  account_id   = each.value
  display_name = each.value
}

locals {
  # The accounts that run the service send traces and metrics.
  observed = merge([for role in ["all", "api", "publisher", "projector"] : {
    "${role} traces"  = { account = role, role = "roles/telemetry.tracesWriter" }
    "${role} metrics" = { account = role, role = "roles/telemetry.metricsWriter" }
  }]...)
}

resource "google_project_iam_member" "observed" {
  for_each = local.observed
  project  = var.project
  role     = each.value.role
  member   = "serviceAccount:${google_service_account.this[each.value.account].email}"
}

output "emails" {
  value = { for role, account in google_service_account.this : role => account.email }
}

output "members" {
  value = { for role, account in google_service_account.this : role => "serviceAccount:${account.email}" }
}
