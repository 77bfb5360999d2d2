package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the user id of the server. Other images without root use the same id.
const user = "65532"

// file is a file of the image. All files belong to root, and nobody may write to them.
type file struct {
	name string
	mode int64
	data []byte
}

// newImage builds the image. Layers that rarely change come first.
func newImage(binary []byte, version string) (v1.Image, error) {
	base := []file{
		{"etc/group", 0o444, []byte("root:x:0:\nserver:x:" + user + ":\n")},
		{"etc/passwd", 0o444, []byte("root:x:0:0::/:/none\nserver:x:" + user + ":" + user + "::/:/none\n")},
		{"etc/ssl/certs/ca-certificates.crt", 0o444, certificates()},
	}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, files := range [][]file{base, {{"server", 0o555, binary}}} {
		layer, err := newLayer(files)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, fmt.Errorf("append layer: %w", err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: "amd64", OS: "linux", RootFS: config.RootFS,
		Config: v1.Config{
			User: user + ":" + user, Entrypoint: []string{"/server"}, WorkingDir: "/",
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			Labels:       map[string]string{"org.opencontainers.image.title": "server", "org.opencontainers.image.version": version},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	return img, nil
}

// newLayer builds a layer with these files and their directories. All times are zero.
func newLayer(files []file) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	seen := map[string]bool{".": true}
	var folder func(name string) error
	folder = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		if err := folder(path.Dir(name)); err != nil {
			return err
		}
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o555, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
	}
	for _, f := range files {
		if err := folder(path.Dir(f.name)); err != nil {
			return nil, fmt.Errorf("write layer: %w", err)
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("write layer: %w", err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("write layer: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("compress layer: %w", err)
	}
	return layer, nil
}

// certificates returns Mozilla's root certificates as PEM. It leaves out those that are trusted
// only until a date, because PEM cannot express that.
func certificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a write to a buffer cannot fail
		}
	}
	return out.Bytes()
}

// newReferrer builds an artifact with the SBOM of an image. It refers to the image.
func newReferrer(img v1.Image, sbom []byte) (v1.Image, error) {
	descriptor, err := partial.Descriptor(img)
	if err != nil {
		return nil, fmt.Errorf("describe image: %w", err)
	}
	artifact := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	artifact = mutate.ConfigMediaType(artifact, spdxType)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(sbom, spdxType))
	if err != nil {
		return nil, fmt.Errorf("append SBOM: %w", err)
	}
	referrer, ok := mutate.Subject(artifact, *descriptor).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("refer to %s: not an image", descriptor.Digest)
	}
	return referrer, nil
}
