# A topic with its schema, unless another service owns it, and for each consumer a subscription and its dead letters.

variable "project" { type = string }
variable "region" { type = string }
variable "topic" { type = string }
variable "schema" { type = string } # a protobuf file with one message
variable "consumers" { type = list(string) }
variable "foreign" { type = bool }         # another service owns the topic
variable "topic_project" { type = string } # where the topic is
variable "exactly_once" { type = bool }
variable "publishers" { type = list(string) }
variable "subscribers" { type = list(string) }
variable "agent" { type = string }

locals {
  week          = "604800s"
  subscriptions = { for consumer in var.consumers : consumer => "${var.topic}.${consumer}" }
  # Terraform knows the addresses of the members only later, so the key has their index.
  members = concat(var.subscribers, [var.agent])
  readers = { for pair in setproduct(var.consumers, range(length(var.subscribers) + 1)) : "${pair[0]} ${pair[1]}" => { consumer = pair[0], member = pair[1] } }
}

resource "google_pubsub_schema" "this" {
  count      = var.foreign ? 0 : 1
  project    = var.project
  name       = var.topic
  type       = "PROTOCOL_BUFFER"
  definition = var.schema
}

resource "google_pubsub_topic" "events" {
  count                      = var.foreign ? 0 : 1
  project                    = var.project
  name                       = var.topic
  message_retention_duration = local.week
  schema_settings {
    schema   = google_pubsub_schema.this[0].id
    encoding = "BINARY"
  }
  # Order is kept only where publishers use one region.
  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_topic" "dead" {
  for_each = local.subscriptions
  project  = var.project
  name     = "${each.value}.dead"
  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_subscription" "events" {
  for_each                     = local.subscriptions
  project                      = var.project
  name                         = each.value
  topic                        = var.foreign ? "projects/${var.topic_project}/topics/${var.topic}" : google_pubsub_topic.events[0].id
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
  # The projector fails a delivery only when it is stopped or crashes. So after 20 failures the message is the likely cause.
  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead[each.key].id
    max_delivery_attempts = 20
  }
}

resource "google_pubsub_subscription" "dead" {
  for_each                   = local.subscriptions
  project                    = var.project
  name                       = "${each.value}.dead"
  topic                      = google_pubsub_topic.dead[each.key].id
  ack_deadline_seconds       = 60
  message_retention_duration = local.week
  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_topic_iam_member" "publisher" {
  count   = var.foreign ? 0 : length(var.publishers) # their names are known only later
  project = var.project
  topic   = google_pubsub_topic.events[0].name
  role    = "roles/pubsub.publisher"
  member  = var.publishers[count.index]
}

resource "google_pubsub_topic_iam_member" "dead" {
  for_each = local.subscriptions
  project  = var.project
  topic    = google_pubsub_topic.dead[each.key].name
  role     = "roles/pubsub.publisher"
  member   = var.agent
}

resource "google_pubsub_subscription_iam_member" "subscriber" {
  for_each     = local.readers
  project      = var.project
  subscription = google_pubsub_subscription.events[each.value.consumer].name
  role         = "roles/pubsub.subscriber"
  member       = local.members[each.value.member]
}
