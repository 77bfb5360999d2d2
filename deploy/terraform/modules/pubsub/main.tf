# Topic, subscription, and where dead letters go. The names are those of internal/localbroker.

variable "project" { type = string }
variable "region" { type = string }
variable "schema" { type = string } # a protobuf file with one message
variable "exactly_once" { type = bool }
variable "publishers" { type = list(string) }
variable "subscribers" { type = list(string) }
variable "agent" { type = string }

locals {
  week = "604800s"
}

resource "google_pubsub_schema" "events" {
  project    = var.project
  name       = "video.events"
  type       = "PROTOCOL_BUFFER"
  definition = var.schema
}

resource "google_pubsub_topic" "events" {
  project                    = var.project
  name                       = "video.events"
  message_retention_duration = local.week
  schema_settings {
    schema   = google_pubsub_schema.events.id
    encoding = "BINARY"
  }
  # Order is kept only where publishers use one region.
  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_topic" "dead" {
  project = var.project
  name    = "video.events.catalog.dead"
  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_subscription" "catalog" {
  project                      = var.project
  name                         = "video.events.catalog"
  topic                        = google_pubsub_topic.events.id
  ack_deadline_seconds         = 60
  enable_message_ordering      = true
  enable_exactly_once_delivery = var.exactly_once
  retain_acked_messages        = true
  message_retention_duration   = local.week
  expiration_policy {
    ttl = "" # never
  }
  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }
  # The projector gives a message back only when it is stopped, or dies: after 20 times in a row the message is at fault.
  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead.id
    max_delivery_attempts = 20
  }
}

resource "google_pubsub_subscription" "dead" {
  project                    = var.project
  name                       = "video.events.catalog.dead"
  topic                      = google_pubsub_topic.dead.id
  ack_deadline_seconds       = 60
  message_retention_duration = local.week
  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_topic_iam_member" "publisher" {
  count   = length(var.publishers) # their names are known only later
  project = var.project
  topic   = google_pubsub_topic.events.name
  role    = "roles/pubsub.publisher"
  member  = var.publishers[count.index]
}

resource "google_pubsub_topic_iam_member" "dead" {
  project = var.project
  topic   = google_pubsub_topic.dead.name
  role    = "roles/pubsub.publisher"
  member  = var.agent
}

resource "google_pubsub_subscription_iam_member" "subscriber" {
  count        = length(var.subscribers) + 1
  project      = var.project
  subscription = google_pubsub_subscription.catalog.name
  role         = "roles/pubsub.subscriber"
  member       = concat(var.subscribers, [var.agent])[count.index]
}
