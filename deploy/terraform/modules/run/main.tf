# What runs, in one of two shapes of the same image. The figures, and the reasons for them, are in deploy/run.

variable "project" { type = string }
variable "region" { type = string }
variable "service" { type = string }
variable "shape" { type = string }
variable "image" { type = string }
variable "emails" { type = map(string) } # of the service accounts, by role
variable "invokers" { type = list(string) }

locals {
  pubsub = {
    PUBSUB_PROJECT  = var.project
    PUBSUB_ENDPOINT = "${var.region}-pubsub.googleapis.com:443"
  }
  telemetry = {
    OTEL_TRACES_EXPORTER     = "google"
    OTEL_TRACES_SAMPLER      = "parentbased_traceidratio"
    OTEL_TRACES_SAMPLER_ARG  = "0.01"
    OTEL_METRICS_EXPORTER    = "google"
    OTEL_RESOURCE_ATTRIBUTES = "gcp.project_id=${var.project},cloud.platform=gcp_cloud_run,cloud.region=${var.region}"
  }
  shapes = {
    all   = { account = "all", instances = 3, env = merge(local.pubsub, { AUTH = "iam", DATABASE_MAX_CONNS = "12" }) }
    pools = { account = "api", instances = 5, env = { ROLES = "api", AUTH = "iam", DATABASE_MAX_CONNS = "6", PUBSUB_PROJECT = var.project } }
  }
  shape = local.shapes[var.shape]
  service_secrets = {
    DATABASE_URL      = "${var.service}-database-url"
    READ_DATABASE_URL = "${var.service}-read-database-url"
  }
  pools = var.shape != "pools" ? {} : {
    publisher = "${var.service}-database-url"
    projector = "${var.service}-read-database-url"
  }
}

resource "google_cloud_run_v2_service" "this" {
  project              = var.project
  location             = var.region
  name                 = var.service
  ingress              = "INGRESS_TRAFFIC_ALL" # IAM says who may call
  invoker_iam_disabled = false
  scaling {
    min_instance_count = 1
  }
  template {
    service_account                  = var.emails[local.shape.account]
    max_instance_request_concurrency = 250
    timeout                          = "3600s"
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"
    scaling {
      max_instance_count = local.shape.instances
    }
    containers {
      name  = "server"
      image = var.image
      args  = ["serve"]
      ports {
        name           = "h2c"
        container_port = 8080
      }
      resources {
        limits            = { cpu = "1", memory = "512Mi" }
        cpu_idle          = false # the CPU is there between requests too
        startup_cpu_boost = true
      }
      dynamic "env" {
        for_each = merge(local.shape.env, local.telemetry, { GOMEMLIMIT = "400MiB" })
        content {
          name  = env.key
          value = env.value
        }
      }
      dynamic "env" {
        for_each = local.service_secrets
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = env.value
              version = "latest"
            }
          }
        }
      }
      startup_probe {
        period_seconds    = 2
        timeout_seconds   = 2
        failure_threshold = 15
        http_get {
          path = "/health/ready"
          port = 8080
        }
      }
      liveness_probe {
        period_seconds    = 10
        timeout_seconds   = 2
        failure_threshold = 3
        http_get {
          path = "/health/live"
          port = 8080
        }
      }
    }
  }
  depends_on = [terraform_data.migrated]
}

resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = toset(var.invokers)
  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.this.name
  role     = "roles/run.invoker"
  member   = each.value
}

# Without the probes of deploy/run: the provider's worker pools (6.50.0) have none.
resource "google_cloud_run_v2_worker_pool" "this" {
  for_each = local.pools
  project  = var.project
  location = var.region
  name     = "${var.service}-${each.key}"
  scaling {
    scaling_mode          = "MANUAL"
    manual_instance_count = 2
  }
  template {
    service_account = var.emails[each.key]
    containers {
      name  = "server"
      image = var.image
      args  = ["serve"]
      resources {
        limits = { cpu = "1", memory = "512Mi" }
      }
      dynamic "env" {
        for_each = merge(local.pubsub, local.telemetry, { ROLES = each.key, DATABASE_MAX_CONNS = "7", GOMEMLIMIT = "400MiB" })
        content {
          name  = env.key
          value = env.value
        }
      }
      env {
        name = "DATABASE_URL"
        value_source {
          secret_key_ref {
            secret  = each.value
            version = "latest"
          }
        }
      }
    }
  }
  depends_on = [terraform_data.migrated]
}

# The migration runs as a job of the same image, whenever the image changes, before the service and the pools get it.
resource "google_cloud_run_v2_job" "migrate" {
  project  = var.project
  location = var.region
  name     = "${var.service}-migrate"
  template {
    task_count = 1
    template {
      service_account = var.emails["migrate"]
      max_retries     = 0 # as in deploy/run/migrate.job.yaml
      timeout         = "1800s"
      containers {
        image = var.image
        args  = ["migrate"]
        env {
          name = "DATABASE_URL"
          value_source {
            secret_key_ref {
              secret  = "${var.service}-migrate-database-url"
              version = "latest"
            }
          }
        }
      }
    }
  }
}

resource "terraform_data" "migrated" {
  triggers_replace = [var.image]
  provisioner "local-exec" {
    command = "gcloud run jobs execute ${google_cloud_run_v2_job.migrate.name} --project=${var.project} --region=${var.region} --wait"
  }
}

output "url" {
  value = google_cloud_run_v2_service.this.uri
}
