output "url" {
  description = "The URL of the service."
  value       = module.run.url
}
