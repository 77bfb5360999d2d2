# The resources that provision.sh makes. Use either these modules or that script.
#
#   terraform apply -var project=my-project -var region=europe-west1

locals {
  # The lists of names.sh, by variable.
  names         = { for line in regexall("(?m)^(\\w+)=\\(?([^)\n]*)", file("${path.module}/../names.sh")) : line[0] => compact(split(" ", line[1])) }
  service       = local.names.SERVICE[0]
  schemas       = zipmap(local.names.TOPICS, local.names.SCHEMA_FILES)
  consumers     = { for name in local.names.SUBSCRIPTIONS : regex("^(.*)\\.", name)[0] => regex("[^.]*$", name)... }
  topic_project = { for topic in local.names.REMOTE_TOPICS : split("/", topic)[3] => split("/", topic)[1] }
  apis          = ["artifactregistry", "cloudbuild", "cloudtrace", "iam", "iamcredentials", "monitoring", "pubsub", "run", "secretmanager", "telemetry"]
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

resource "google_artifact_registry_repository_iam_member" "release" {
  project    = var.project
  location   = var.region
  repository = google_artifact_registry_repository.this.name
  role       = "roles/artifactregistry.writer"
  member     = module.iam.members["release"]
}

module "iam" {
  source     = "./modules/iam"
  project    = var.project
  service    = local.service
  depends_on = [google_project_service.this]
}

module "pubsub" {
  source        = "./modules/pubsub"
  for_each      = toset(concat(local.names.TOPICS, keys(local.consumers)))
  project       = var.project
  region        = var.region
  topic         = each.key
  schema        = contains(local.names.TOPICS, each.key) ? file("${path.module}/../../${local.schemas[each.key]}") : ""
  consumers     = lookup(local.consumers, each.key, [])
  foreign       = !contains(local.names.TOPICS, each.key)
  topic_project = lookup(local.topic_project, each.key, var.project)
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
  viewer     = module.iam.members["release"]
  depends_on = [google_project_service.this]
}
