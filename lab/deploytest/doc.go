// Package deploytest runs the scripts of deploy/ with the real gcloud, against servers of this process: pubsublocal, and a
// recording control plane for everything else. What it asserts is what the scripts made, read back, and each request
// that was sent. So the scripts, their flags and gcloud's reading of the manifests are tested; what Google's servers make
// of the requests is not.
//
// The tests need gcloud and bash, and run where DEPLOY_TEST is set. They call gcloud about 250 times, which takes 220 seconds of
// one core; on two that did much else it took four minutes. Where gcloud is not installed they pass and log that nothing was
// run.
package deploytest
