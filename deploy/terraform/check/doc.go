// Package check checks the Terraform files beside it where Terraform itself cannot: `terraform validate` needs the provider,
// which comes from Terraform's registry. Its tests parse every file with HashiCorp's parser, and compare every resource with
// the schema of the provider: arguments and blocks that do not exist, arguments written as blocks and the other way round, and
// required ones that are missing; and that every reference between the files leads somewhere, and every module gets the variables
// that it wants. Types of values, attributes that the provider computes, and what it does are not checked.
//
// testdata/schema.json has the provider's schema for the resources that are used.
//
// It is a module of its own: the service needs none of its dependencies.
package check
