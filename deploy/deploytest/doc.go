// Package deploytest runs the scripts of deploy/ with the real gcloud, against servers of this process: pubsublocal, and a
// recording control plane for everything else. What it asserts is what the scripts made, read back, and each request
// that was sent. So the scripts, their flags and gcloud's reading of the manifests are tested; what Google's servers make
// of the requests is not.
//
// The tests need gcloud and bash, and run where DEPLOY_TEST is set. They call gcloud about 170 times, which takes two minutes on
// two cores, and four where much else is going on. Where gcloud is not installed they pass and log that nothing was run.
package deploytest
