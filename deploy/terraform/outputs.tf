output "url" {
  description = "Where the service answers those who may call it."
  value       = module.run.url
}
