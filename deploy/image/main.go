// Command image builds the container image of the service, without Docker and without a base image. The image has a
// static binary and root certificates, and its user is not root. It has no shell and no package manager, and nothing
// writes to its root file system.
//
// The image is reproducible: the same source, version and Go release give the same digest, on any machine and in any
// directory. All times are zero, and the binary has no paths. The certificates are Mozilla's list, from a module that
// go.sum pins.
//
//	image [--version V] [--output FILE.tar] [--sbom FILE.spdx.json] [--push NAME:TAG]
//
// It prints the digest, or after a push NAME@DIGEST. The SBOM, in SPDX 2.3, lists the modules in the binary. It is
// written to a file, and pushed as a referrer of the image. The command uses the credentials of docker and gcloud.
//
// It is a module of its own, because the service needs none of its dependencies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/google"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1) //nolint:forbidigo // main ends the process
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	source := flags.String("source", ".", "the folder of the service's module")
	version := flags.String("version", "dev", "what `server version` prints")
	output := flags.String("output", "", "write the image here, for docker load; with --push optional")
	sbom := flags.String("sbom", "", "write the list of what is in it here")
	push := flags.String("push", "", "push it as NAME:TAG")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 0 {
		return fmt.Errorf("unknown argument %q: try --help", flags.Arg(0))
	}
	if *output == "" && *push == "" {
		return errors.New("want --output, --push, or both: try --help")
	}
	tag, err := name.NewTag("server:" + *version)
	if *push != "" {
		tag, err = name.NewTag(*push)
	}
	if err != nil {
		return fmt.Errorf("name of the image: %w", err)
	}
	binary, err := buildServer(ctx, *source, *version, stderr)
	if err != nil {
		return err
	}
	img, err := newImage(binary, *version)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("compute digest: %w", err)
	}
	list, err := newSBOM(binary, *version, digest)
	if err != nil {
		return err
	}
	if *sbom != "" {
		if err := os.WriteFile(*sbom, list, 0o644); err != nil { //nolint:gosec // everybody may read it
			return fmt.Errorf("write SBOM: %w", err)
		}
	}
	if *output != "" {
		if err := tarball.WriteToFile(*output, tag, img); err != nil {
			return fmt.Errorf("write image: %w", err)
		}
	}
	if *push == "" {
		_, err = fmt.Fprintln(stdout, digest)
		return err
	}
	if err := pushImage(ctx, tag, img, list); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s@%s\n", tag.Repository, digest)
	return err
}

// buildServer builds the server, and returns the binary.
func buildServer(ctx context.Context, source, version string, stderr io.Writer) ([]byte, error) {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary directory that is left does no harm
	file := filepath.Join(dir, "server")
	// Without the version control stamp, a commit that changes no code does not change the binary.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", //nolint:gosec // our own arguments
		"-ldflags=-s -w -buildid= -X main.version="+version, "-o", file, "./cmd/server")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1", "GOFLAGS=-mod=readonly", "GOWORK=off")
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("build server: %w", err)
	}
	binary, err := os.ReadFile(file) //nolint:gosec // the binary from above
	if err != nil {
		return nil, fmt.Errorf("read server: %w", err)
	}
	return binary, nil
}

// pushImage pushes an image, and then its SBOM. A crash in between leaves an image without an SBOM. Another push adds
// it.
func pushImage(ctx context.Context, tag name.Tag, img v1.Image, sbom []byte) error {
	options := []remote.Option{
		remote.WithContext(ctx),
		remote.WithAuthFromKeychain(authn.NewMultiKeychain(authn.DefaultKeychain, google.Keychain)),
	}
	if err := remote.Write(tag, img, options...); err != nil {
		return fmt.Errorf("push image: %w", err)
	}
	referrer, err := newReferrer(img, sbom)
	if err != nil {
		return err
	}
	digest, err := referrer.Digest()
	if err != nil {
		return fmt.Errorf("compute digest of SBOM: %w", err)
	}
	if err := remote.Write(tag.Digest(digest.String()), referrer, options...); err != nil {
		return fmt.Errorf("push SBOM: %w", err)
	}
	return nil
}
