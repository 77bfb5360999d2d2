package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// spdxType is the media type of an SBOM.
const spdxType = "application/spdx+json"

// The parts of SPDX 2.3 that we use: https://spdx.github.io/spdx-spec/v2.3/
type (
	spdxDocument struct {
		SPDXVersion       string             `json:"spdxVersion"`
		DataLicense       string             `json:"dataLicense"`
		SPDXID            string             `json:"SPDXID"`
		Name              string             `json:"name"`
		DocumentNamespace string             `json:"documentNamespace"`
		CreationInfo      spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Relationships     []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string         `json:"SPDXID"`
		Name             string         `json:"name"`
		VersionInfo      string         `json:"versionInfo"`
		DownloadLocation string         `json:"downloadLocation"`
		FilesAnalyzed    bool           `json:"filesAnalyzed"`
		LicenseConcluded string         `json:"licenseConcluded"`
		LicenseDeclared  string         `json:"licenseDeclared"`
		CopyrightText    string         `json:"copyrightText"`
		Checksums        []spdxChecksum `json:"checksums,omitempty"`
		ExternalRefs     []spdxRef      `json:"externalRefs"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

// newSBOM returns the SBOM of a binary, from the build information in it: the Go release, and every module with its
// hash from go.sum. Licenses are in docs/licenses.md. The SBOM is reproducible, like the image.
func newSBOM(binary []byte, version string, image v1.Hash) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read build information: %w", err)
	}
	document := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: info.Main.Path + "@" + version,
		DocumentNamespace: "https://" + info.Main.Path + "/spdx/" + image.Hex,
		CreationInfo:      spdxCreation{Created: "1970-01-01T00:00:00Z", Creators: []string{"Tool: deploy/image"}},
	}
	add := func(id, name, version, sum, relation, of string) error {
		p := spdxPackage{
			SPDXID: id, Name: name, VersionInfo: version, DownloadLocation: "NOASSERTION",
			LicenseConcluded: "NOASSERTION", LicenseDeclared: "NOASSERTION", CopyrightText: "NOASSERTION",
			ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + name + "@" + version}},
		}
		if sum != "" { // the hash in go.sum: SHA-256 of the list of the module's files and their hashes
			hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
			if err != nil {
				return fmt.Errorf("hash of %s: %w", name, err)
			}
			p.Checksums = []spdxChecksum{{"SHA256", hex.EncodeToString(hash)}}
		}
		document.Packages = append(document.Packages, p)
		document.Relationships = append(document.Relationships, spdxRelationship{of, relation, id})
		return nil
	}
	const root = "SPDXRef-server"
	if err := add(root, info.Main.Path, version, "", "DESCRIBES", "SPDXRef-DOCUMENT"); err != nil {
		return nil, err
	}
	modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
	for i, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		if err := add(fmt.Sprintf("SPDXRef-module-%d", i), module.Path, module.Version, module.Sum, "DEPENDS_ON", root); err != nil {
			return nil, err
		}
	}
	out, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write SBOM: %w", err)
	}
	return append(out, '\n'), nil
}
