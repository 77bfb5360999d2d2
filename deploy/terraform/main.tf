# What provision.sh and release.sh make, for those who keep their infrastructure in Terraform, but for what README.md lists.
# Take one or the other.
#
#   terraform apply -var project=my-project -var region=europe-west1 -var image=…@sha256:…

locals {
  apis = ["artifactregistry", "cloudscheduler", "cloudtrace", "iam", "monitoring", "pubsub", "run", "secretmanager", "telemetry"]
}

data "google_project" "this" {
  project_id = var.project
}

resource "google_project_service" "this" {
  for_each           = toset(local.apis)
  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false # others may use it
}

resource "google_artifact_registry_repository" "this" {
  project       = var.project
  location      = var.region
  repository_id = var.service
  format        = "DOCKER"
  docker_config {
    immutable_tags = true
  }
  depends_on = [google_project_service.this]
}

module "iam" {
  source     = "./modules/iam"
  project    = var.project
  service    = var.service
  depends_on = [google_project_service.this]
}

module "pubsub" {
  source       = "./modules/pubsub"
  project      = var.project
  region       = var.region
  schema       = file("${path.module}/../../api/proto/video/v1/video_event.proto")
  exactly_once = var.exactly_once
  publishers   = [module.iam.members["all"], module.iam.members["publisher"]]
  subscribers  = [module.iam.members["all"], module.iam.members["drain"], module.iam.members["projector"]]
  # Pub/Sub's own account moves dead letters.
  agent      = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
  depends_on = [google_project_service.this]
}

module "secrets" {
  source  = "./modules/secrets"
  project = var.project
  region  = var.region
  readers = {
    "${var.service}-database-url"         = [for role in ["all", "drain", "api", "publisher"] : module.iam.members[role]]
    "${var.service}-catalog-database-url" = [for role in ["all", "drain", "api", "projector"] : module.iam.members[role]]
    "${var.service}-migrate-database-url" = [module.iam.members["migrate"]]
  }
  depends_on = [google_project_service.this]
}

module "run" {
  source   = "./modules/run"
  project  = var.project
  region   = var.region
  service  = var.service
  shape    = var.shape
  image    = var.image
  emails   = module.iam.emails
  invokers = var.invokers
  # A revision does not start before its secrets can be read, nor a loop before its topic is there.
  depends_on = [module.pubsub, module.secrets]
}
