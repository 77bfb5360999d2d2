// Package check checks the Terraform files in the directory above without the provider. `terraform validate` needs the
// provider, which it downloads from Terraform's registry.
//
// The tests parse every file with HashiCorp's parser, and compare every resource with the schema of the provider. They
// find unknown arguments and blocks, arguments written as blocks and the reverse, and missing required arguments. They
// also check that every reference is declared, and that every module gets its variables. They do not check the types of
// values, attributes that the provider computes, or the effect of a resource.
//
// testdata/schema.json is the provider's schema for the resources that are used.
//
// It is a module of its own, because the service needs none of its dependencies.
package check
