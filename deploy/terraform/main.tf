# What provision.sh and release.sh make, for those who keep their infrastructure in Terraform, but for what README.md lists.
# Take one or the other.
#
#   terraform apply -var project=my-project -var region=europe-west1 -var image=…@sha256:…

locals {
  names   = "${path.module}/../../internal/names"
  service = yamldecode(file("${local.names}/names.yaml")).service
  topics  = [for name in fileset("${local.names}/topics", "*.yaml") : yamldecode(file("${local.names}/topics/${name}"))]
  apis    = ["artifactregistry", "cloudtrace", "iam", "monitoring", "pubsub", "run", "secretmanager", "telemetry"]
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
  repository_id = local.service
  format        = "DOCKER"
  docker_config {
    immutable_tags = true
  }
  depends_on = [google_project_service.this]
}

module "iam" {
  source     = "./modules/iam"
  project    = var.project
  service    = local.service
  depends_on = [google_project_service.this]
}

module "pubsub" {
  source        = "./modules/pubsub"
  for_each      = { for topic in local.topics : topic.name => topic }
  project       = var.project
  region        = var.region
  topic         = each.key
  schema        = file("${path.module}/../../${each.value.schema}")
  consumers     = try(each.value.consumers, [])
  foreign       = try(each.value.foreign, false)
  topic_project = try(each.value.project, var.project)
  exactly_once  = var.exactly_once
  publishers    = [module.iam.members["all"], module.iam.members["publisher"]]
  subscribers   = [module.iam.members["all"], module.iam.members["projector"]]
  # Pub/Sub's own account moves dead letters.
  agent      = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
  depends_on = [google_project_service.this]
}

module "secrets" {
  source  = "./modules/secrets"
  project = var.project
  region  = var.region
  readers = {
    "${local.service}-database-url"         = [for role in ["all", "api", "publisher"] : module.iam.members[role]]
    "${local.service}-read-database-url"    = [for role in ["all", "api", "projector"] : module.iam.members[role]]
    "${local.service}-migrate-database-url" = [module.iam.members["migrate"]]
  }
  depends_on = [google_project_service.this]
}

module "run" {
  source   = "./modules/run"
  project  = var.project
  region   = var.region
  service  = local.service
  shape    = var.shape
  image    = var.image
  emails   = module.iam.emails
  invokers = var.invokers
  # A revision does not start before its secrets can be read, nor a loop before its topic is there.
  depends_on = [module.pubsub, module.secrets]
}
