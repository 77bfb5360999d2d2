# Secrets without a value: a value would be in Terraform's state. A person adds it with gcloud secrets versions add.

variable "project" { type = string }
variable "region" { type = string }
variable "readers" { # by secret
  type = map(list(string))
}
variable "viewer" { type = string } # a release pins the newest version, and cannot read it

locals {
  grants = merge([for secret, members in var.readers : { for member in members : "${secret} ${member}" => { secret = secret, member = member } }]...)
}

resource "google_secret_manager_secret" "this" {
  for_each  = var.readers
  project   = var.project
  secret_id = each.key
  replication {
    user_managed {
      replicas {
        location = var.region
      }
    }
  }
}

resource "google_secret_manager_secret_iam_member" "reader" {
  for_each  = local.grants
  project   = var.project
  secret_id = google_secret_manager_secret.this[each.value.secret].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = each.value.member
}

resource "google_secret_manager_secret_iam_member" "viewer" {
  for_each  = google_secret_manager_secret.this
  project   = var.project
  secret_id = each.value.secret_id
  role      = "roles/secretmanager.viewer"
  member    = var.viewer
}
