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
    release   = "${var.service}-release"
  }
}

resource "google_service_account" "this" {
  for_each     = local.accounts
  project      = var.project
  account_id   = each.value
  display_name = each.value
}

locals {
  # The accounts that run the service send traces and metrics. The release account deploys revisions, and calls them.
  roles = merge(
    { for role in ["all", "api", "publisher", "projector"] : role => ["roles/telemetry.tracesWriter", "roles/telemetry.metricsWriter"] },
    { release = ["roles/run.developer", "roles/run.invoker", "roles/logging.logWriter"] },
  )
  grants = merge([for account, roles in local.roles : { for role in roles : "${account} ${role}" => { account = account, role = role } }]...)
  # What the release account may do as another account: revisions run as the others, and it makes tokens of its own.
  acts = { for account in keys(local.accounts) : account => account == "release" ? "roles/iam.serviceAccountTokenCreator" : "roles/iam.serviceAccountUser" }
}

resource "google_project_iam_member" "this" {
  for_each = local.grants
  project  = var.project
  role     = each.value.role
  member   = "serviceAccount:${google_service_account.this[each.value.account].email}"
}

resource "google_service_account_iam_member" "release" {
  for_each           = local.acts
  service_account_id = google_service_account.this[each.key].name
  role               = each.value
  member             = "serviceAccount:${google_service_account.this["release"].email}"
}

output "members" {
  value = { for role, account in google_service_account.this : role => "serviceAccount:${account.email}" }
}
