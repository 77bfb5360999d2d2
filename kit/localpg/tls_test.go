package localpg

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// authority signs certificates.
type authority struct {
	template *x509.Certificate
	key      *ecdsa.PrivateKey
}

// writePEM writes a file of one block.
func writePEM(t *testing.T, name, kind string, content []byte, mode os.FileMode) {
	t.Helper()
	must(t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), mode))
}

// newAuthority makes an authority, and writes its certificate to a file.
func newAuthority(t *testing.T, file string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	a := authority{key: key, template: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: filepath.Base(file)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	certificate, err := x509.CreateCertificate(rand.Reader, a.template, a.template, key.Public(), key)
	must(t, err)
	writePEM(t, file, "CERTIFICATE", certificate, 0o644)
	return a
}

// sign writes a certificate for localhost and its key, for the server's user to read.
func (a authority) sign(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	certificate, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.template, key.Public(), a.key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	writePEM(t, certFile, "CERTIFICATE", certificate, 0o644)
	writePEM(t, keyFile, "PRIVATE KEY", private, 0o600)
	if user := serverUser(); int(user.Uid) != os.Geteuid() {
		must(t, os.Chown(keyFile, int(user.Uid), int(user.Gid)))
	}
}

// freePort returns a TCP port of 127.0.0.1 that was free a moment ago. The kernel does not choose it for a program
// that asks for any port, so no other program gets it before the server.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		port := strconv.Itoa(15_000 + mathrand.IntN(15_000))
		if listener, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			listener.Close()
			return port
		}
	}
}

// sslmode=verify-full in the URL, as docs/deploy.md requires, accepts the service's own server. It refuses a server with
// another name, with a certificate of another authority, or without one; sslmode=require accepts any certificate.
func TestVerifyFull(t *testing.T) {
	deep(t)
	t.Parallel()
	dir := openDir(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	ours := newAuthority(t, file("ours.crt"))
	newAuthority(t, file("other.crt"))
	ours.sign(t, file("server.crt"), file("server.key"))
	settings := map[string]string{"listen_addresses": "127.0.0.1", "port": freePort(t)}
	plain := map[string]string{"listen_addresses": "127.0.0.1", "port": freePort(t)}
	start(t, Config{Settings: plain})
	settings["ssl"], settings["ssl_cert_file"], settings["ssl_key_file"] = "on", file("server.crt"), file("server.key")
	start(t, Config{Settings: settings})

	for _, test := range []struct {
		name, host, port, mode, ca string
		want                       string // in the error; empty: it connects
	}{
		{"our server", "localhost", settings["port"], "verify-full", "ours.crt", ""},
		{"another authority", "localhost", settings["port"], "verify-full", "other.crt", "certificate"},
		{"another name", "127.0.0.1", settings["port"], "verify-full", "ours.crt", "certificate"},
		{"no TLS", "localhost", plain["port"], "verify-full", "ours.crt", "refused TLS"},
		{"require, another name", "127.0.0.1", settings["port"], "require", "", ""},
	} {
		target := fmt.Sprintf("postgres://postgres@%s:%s/postgres?sslmode=%s", test.host, test.port, test.mode)
		if test.ca != "" {
			target += "&sslrootcert=" + file(test.ca)
		}
		pool, err := pgxpool.New(t.Context(), target)
		must(t, err)
		var encrypted bool
		err = pool.QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted)
		pool.Close()
		if test.want == "" && (err != nil || !encrypted) {
			t.Errorf("%s: %v, encrypted: %t, want to be connected with TLS", test.name, err, encrypted)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want an error with %q", test.name, err, test.want)
		}
	}
}
