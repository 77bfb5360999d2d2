// Package deploytest runs the scripts of deploy/ with the real gcloud, against servers in this process: pubsublocal,
// and a recording control plane for everything else. It checks the created resources, and each request that was sent.
// So it tests the scripts, their flags, and how gcloud reads the manifests. It does not test what Google's servers do
// with the requests.
//
// The tests need gcloud and bash, and run only if DEPLOY_TEST is set. They call gcloud about 250 times, which takes 220
// seconds on one core, and about four minutes on a busy machine. If gcloud is not installed, they pass and log that
// nothing was run.
package deploytest
