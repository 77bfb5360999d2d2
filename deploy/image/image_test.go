package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log" //nolint:depguard // what the registry of the tests takes
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const source = "../.."

// maxSize is the maximum size of the image in bytes, because every new instance has to pull it.
const maxSize = 25 << 20

// build runs the command, and returns its output.
func build(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), args, &out, t.Output()); err != nil {
		t.Fatalf("image %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(out.String())
}

// The image is reproducible: a second build from a copy in another directory is the same. The image is small, does not
// run as root, and its server needs nothing that is not in the image.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	first := filepath.Join(dir, "first.tar")
	digest := build(t, "--source", source, "--version", "v1", "--output", first, "--sbom", filepath.Join(dir, "first.json"))
	copied := filepath.Join(dir, "copy")
	copySource(t, copied)
	again := build(t, "--source", copied, "--version", "v1", "--output", filepath.Join(dir, "second.tar"), "--sbom", filepath.Join(dir, "second.json"))
	if again != digest {
		t.Errorf("second build has digest %s, want %s as the first", again, digest)
	}
	if a, b := read(t, filepath.Join(dir, "first.json")), read(t, filepath.Join(dir, "second.json")); !bytes.Equal(a, b) {
		t.Error("the SBOMs of the two builds differ")
	}

	img, err := tarball.ImageFromPath(first, nil)
	if err != nil {
		t.Fatalf("read image: %v", err)
	}
	root := filepath.Join(dir, "root")
	t.Run("small, and not root's", func(t *testing.T) { checkConfig(t, img) })
	names := extract(t, img, root)
	t.Run("nothing else is in it", func(t *testing.T) {
		want := []string{"etc", "etc/group", "etc/passwd", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt", "server"}
		if !slices.Equal(names, want) {
			t.Errorf("files = %q, want %q", names, want)
		}
	})
	t.Run("the certificates are those of Google, among others", func(t *testing.T) { checkCertificates(t, root) })
	t.Run("the server runs", func(t *testing.T) { checkRuns(t, root) })
	t.Run("the SBOM lists what is linked", func(t *testing.T) { checkSBOM(t, read(t, filepath.Join(dir, "first.json"))) })
}

func checkConfig(t *testing.T, img v1.Image) {
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatalf("read configuration: %v", err)
	}
	if got := config.Config.User; got != "65532:65532" {
		t.Errorf("user = %q, want 65532:65532", got)
	}
	if got := config.Config.Entrypoint; !slices.Equal(got, []string{"/server"}) {
		t.Errorf("entry point = %q, want /server", got)
	}
	if !config.Created.IsZero() {
		t.Errorf("created at %v, want no time: it would change the digest", config.Created)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatalf("read layers: %v", err)
	}
	var size int64
	for _, layer := range layers {
		n, err := layer.Size()
		if err != nil {
			t.Fatalf("read layer: %v", err)
		}
		size += n
	}
	t.Logf("the image has %.1f MiB, compressed", float64(size)/(1<<20))
	if size > maxSize {
		t.Errorf("the image has %d bytes, want at most %d", size, maxSize)
	}
}

func checkCertificates(t *testing.T, root string) {
	rest := read(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	var names []string
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatalf("parse certificate %d: %v", len(names), err)
		}
		names = append(names, certificate.Subject.CommonName)
	}
	if !slices.Contains(names, "GTS Root R1") || len(names) < 50 {
		t.Errorf("%d certificates, with GTS Root R1: %t; want 50 or more, and it", len(names), slices.Contains(names, "GTS Root R1"))
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes after the last certificate, want none", len(rest))
	}
}

// The server runs with the image as its root file system, as its user. It can write nothing there.
func checkRuns(t *testing.T, root string) {
	before := snapshot(t, root)
	out, err := inImage(t, root, nil, "version")
	if got := strings.TrimSpace(out); err != nil || got != "v1" {
		t.Errorf("server version = %q, error %v; want v1", got, err)
	}
	// It reads its settings and tries to connect to the database. There is none, so it gives up after 10 s.
	env := []string{"ROLES=api", "AUTH=off", "DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}
	out, err = inImage(t, root, env, "serve")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "server: DATABASE_URL: ") || strings.Contains(out, "panic") {
		t.Errorf("server serve without a database: error %v, output %q; want exit code 1 and DATABASE_URL named", err, out)
	}
	if after := snapshot(t, root); !slices.Equal(after, before) {
		t.Errorf("files after = %q, want %q: it must write none", after, before)
	}
}

func checkSBOM(t *testing.T, data []byte) {
	var document spdxDocument
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatalf("parse SBOM: %v", err)
	}
	found := map[string]spdxPackage{}
	for _, p := range document.Packages {
		found[p.Name] = p
	}
	for _, want := range []string{"stdlib", "example.com/videocatalog", "google.golang.org/grpc", "github.com/jackc/pgx/v5"} {
		p, ok := found[want]
		if !ok || p.VersionInfo == "" {
			t.Errorf("%s: %+v, want it with a version", want, p)
		}
	}
	if n := len(found["google.golang.org/grpc"].Checksums); n != 1 {
		t.Errorf("google.golang.org/grpc has %d checksums, want 1", n)
	}
	if got, want := len(document.Relationships), len(document.Packages); got != want {
		t.Errorf("%d relationships, want %d, one per package", got, want)
	}
}

// A push creates the image with its tag and prints its digest. The SBOM refers to the image.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(t.Output(), "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/project/server"
	printed := build(t, "--source", source, "--version", "v2", "--push", repository+":v2")
	digest, err := name.NewDigest(printed)
	if err != nil {
		t.Fatalf("printed %q, want a name with a digest: %v", printed, err)
	}
	tagged, err := remote.Head(digest.Tag("v2"))
	if err != nil {
		t.Fatalf("read the tag: %v", err)
	}
	if got := tagged.Digest.String(); got != digest.DigestStr() {
		t.Errorf("the tag has %s, want what was printed, %s", got, digest.DigestStr())
	}
	referrers, err := remote.Referrers(digest)
	if err != nil {
		t.Fatalf("list referrers: %v", err)
	}
	manifest, err := referrers.IndexManifest()
	if err != nil {
		t.Fatalf("read referrers: %v", err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != spdxType {
		t.Fatalf("referrers = %+v, want one of type %s", manifest.Manifests, spdxType)
	}
	sbom, err := remote.Image(digest.Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatalf("read the SBOM: %v", err)
	}
	layers, err := sbom.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("layers of the SBOM: %d, error %v; want 1", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatalf("read the SBOM: %v", err)
	}
	defer content.Close()
	data, err := io.ReadAll(content)
	if err != nil {
		t.Fatalf("read the SBOM: %v", err)
	}
	checkSBOM(t, data)
}

// Bad arguments are refused before anything is built.
func TestBadArguments(t *testing.T) {
	for _, test := range []struct{ name, args, want string }{
		{"nowhere to write to", "--version v1", "--output"},
		{"no name", "--push UPPER:v1", "name of the image"},
		{"too much", "--output x.tar server", `"server"`},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.want)
		}
	}
}

// copySource copies the source files of the server.
func copySource(t *testing.T, to string) {
	t.Helper()
	for _, dir := range []string{"api", "cmd/server", "db", "internal"} {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(source, dir))); err != nil {
			t.Fatalf("copy %s: %v", dir, err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum", "kit/go.mod"} {
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(file)), 0o700); err != nil {
			t.Fatalf("make the folder of %s: %v", file, err)
		}
		if err := os.WriteFile(filepath.Join(to, file), read(t, filepath.Join(source, file)), 0o600); err != nil {
			t.Fatalf("copy %s: %v", file, err)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return data
}

// extract unpacks the root file system of an image, and returns the sorted names.
func extract(t *testing.T, img v1.Image, to string) []string {
	t.Helper()
	content := mutate.Extract(img)
	defer content.Close()
	var names []string
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("read image: %v", err)
		}
		path := filepath.Join(to, filepath.FromSlash(header.Name))
		names = append(names, strings.TrimSuffix(header.Name, "/"))
		if header.Uid != 0 || header.Gid != 0 || header.Mode&0o222 != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s is %d:%d, mode %o, of %v; want root's, for nobody to write, of time zero", header.Name, header.Uid, header.Gid, header.Mode, header.ModTime)
		}
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatalf("unpack: %v", err)
			}
			continue
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatalf("read image: %v", err)
		}
		// Extract returns the newest layer first, and it has no directories.
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatalf("unpack: %v", err)
		}
		if err := os.WriteFile(path, data, fs.FileMode(header.Mode)); err != nil {
			t.Fatalf("unpack: %v", err)
		}
	}
	slices.Sort(names)
	return names
}

// snapshot returns the names and sizes of files.
func snapshot(t *testing.T, root string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		lines = append(lines, path+" "+info.Mode().String()+" "+info.ModTime().String())
		return nil
	})
	if err != nil {
		t.Fatalf("list files: %v", err)
	}
	return lines
}
