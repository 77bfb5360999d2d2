variable "project" {
  description = "Id of the project, which exists and has a billing account."
  type        = string
}

variable "region" {
  description = "Region of everything, such as europe-west1."
  type        = string
}

variable "exactly_once" {
  description = "Exactly-once delivery for the subscription; the inbox makes it unnecessary."
  type        = bool
  default     = false
}
