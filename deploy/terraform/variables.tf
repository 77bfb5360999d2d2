variable "project" {
  description = "Id of the project, which exists and has a billing account."
  type        = string
}

variable "region" {
  description = "Region of everything, such as europe-west1."
  type        = string
}

variable "shape" {
  description = "all: one service with every role; pools: a service and two worker pools."
  type        = string
  default     = "all"
  validation {
    condition     = contains(["all", "pools"], var.shape)
    error_message = "shape must be all or pools."
  }
}

variable "image" {
  description = "The image, by digest: docs/deploy.md."
  type        = string
  validation {
    condition     = can(regex("@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must be NAME@sha256:DIGEST: a tag may move."
  }
}

variable "invokers" {
  description = "Who may call the service, such as serviceAccount:…; nobody by default."
  type        = list(string)
  default     = []
}

variable "exactly_once" {
  description = "Exactly-once delivery for the subscription; the inbox makes it unnecessary."
  type        = bool
  default     = false
}
