package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// linked is one module that a program contains.
type linked struct {
	Path, Version, Sum string
	Dir                string   // in the module cache
	usedBy             []string // programs
}

// linkedModules reads out of the programs in bin what the linker put in: not what go.mod asks for, which is more.
func linkedModules(bin string) (mods []linked, goVersion string, err error) {
	byKey := map[string]*linked{}
	for _, p := range programs {
		bi, err := buildinfo.ReadFile(filepath.Join(bin, p))
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", p, err)
		}
		goVersion = bi.GoVersion
		for _, d := range bi.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			key := d.Path + "@" + d.Version
			if byKey[key] == nil {
				byKey[key] = &linked{Path: d.Path, Version: d.Version, Sum: d.Sum}
			}
			byKey[key].usedBy = append(byKey[key].usedBy, p)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(byKey)) {
		mods = append(mods, *byKey[k])
	}
	return mods, goVersion, nil
}

// locate fills in where the modules' sources are.
func locate(root string, mods []linked) error {
	args := []string{"list", "-m", "-f", "{{.Path}}\t{{.Dir}}"}
	for _, m := range mods {
		args = append(args, m.Path)
	}
	out, err := output(root, []string{"GOFLAGS=-mod=mod"}, "go", args...)
	if err != nil {
		return err
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		p, d, _ := strings.Cut(strings.TrimSpace(line), "\t")
		dirs[p] = d
	}
	for i := range mods {
		if mods[i].Dir = dirs[mods[i].Path]; mods[i].Dir == "" {
			return fmt.Errorf("module %s is linked, but its source is not here; run go mod download", mods[i].Path)
		}
	}
	return nil
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice)([.-].*)?$`)

// licenseTexts are the terms that a directory of source comes with, notices included.
func licenseTexts(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range files {
		if f.IsDir() || !licenseFile.MatchString(f.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return "", err
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		return "", fmt.Errorf("%s has no license file: it cannot be handed out", dir)
	}
	return b.String(), nil
}

// licenseID names the terms by a phrase that only they have, as SPDX does; NOASSERTION where none is known.
func licenseID(text string) string {
	t := strings.Join(strings.Fields(text), " ")
	for _, l := range []struct{ id, phrase string }{
		{"Apache-2.0", "Apache License Version 2.0"},
		{"MPL-2.0", "Mozilla Public License Version 2.0"},
		{"MPL-2.0", "Mozilla Public License, version 2.0"},
		{"BSD-3-Clause", "Neither the name of"},
		{"BSD-3-Clause", "Neither the names of"},
		{"BSD-2-Clause", "Redistributions in binary form must reproduce"},
		{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
		{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose"},
	} {
		if strings.Contains(t, l.phrase) {
			return l.id
		}
	}
	return "NOASSERTION"
}

// The document is SPDX 2.3 in JSON: what its schema requires, and what tools look at.
type (
	spdxDoc struct {
		SPDXVersion       string     `json:"spdxVersion"`
		DataLicense       string     `json:"dataLicense"`
		SPDXID            string     `json:"SPDXID"`
		Name              string     `json:"name"`
		DocumentNamespace string     `json:"documentNamespace"`
		CreationInfo      spdxInfo   `json:"creationInfo"`
		Packages          []spdxPkg  `json:"packages"`
		Relationships     []spdxLink `json:"relationships"`
	}
	spdxInfo struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPkg struct {
		Name             string    `json:"name"`
		SPDXID           string    `json:"SPDXID"`
		VersionInfo      string    `json:"versionInfo"`
		DownloadLocation string    `json:"downloadLocation"`
		FilesAnalyzed    bool      `json:"filesAnalyzed"`
		LicenseConcluded string    `json:"licenseConcluded"`
		LicenseDeclared  string    `json:"licenseDeclared"`
		CopyrightText    string    `json:"copyrightText"`
		Purpose          string    `json:"primaryPackagePurpose"`
		SourceInfo       string    `json:"sourceInfo,omitempty"`
		Checksums        []spdxSum `json:"checksums,omitempty"`
		ExternalRefs     []spdxRef `json:"externalRefs,omitempty"`
	}
	spdxSum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxLink struct {
		From string `json:"spdxElementId"`
		To   string `json:"relatedSpdxElement"`
		Type string `json:"relationshipType"`
	}
)

var notSPDX = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func spdxID(kind, name string) string {
	return "SPDXRef-" + kind + "-" + notSPDX.ReplaceAllString(name, "-")
}

// bill is the bill of materials of the programs in bin: each program, the toolchain's library and every linked module.
func bill(src *source, arch, bin string, mods []linked, goVersion string) ([]byte, error) {
	library := linked{Path: "stdlib", Version: strings.TrimPrefix(goVersion, "go"), usedBy: programs}
	doc := spdxDoc{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT",
		Name:              fmt.Sprintf("sluice-%s-linux-%s", src.version, arch),
		DocumentNamespace: fmt.Sprintf("https://%s/spdx/%s/%s", module, src.commit, arch),
		CreationInfo:      spdxInfo{Created: src.time.Format("2006-01-02T15:04:05Z"), Creators: []string{"Tool: sluice-packaging"}},
	}
	for _, p := range programs {
		b, err := os.ReadFile(filepath.Join(bin, p))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		doc.Packages = append(doc.Packages, spdxPkg{
			Name: p, SPDXID: spdxID("Program", p), VersionInfo: src.version, DownloadLocation: "NOASSERTION", LicenseConcluded: "Apache-2.0",
			LicenseDeclared: "Apache-2.0", CopyrightText: "NOASSERTION", Purpose: "APPLICATION", SourceInfo: "commit " + src.commit,
			Checksums:    []spdxSum{{"SHA256", hex.EncodeToString(sum[:])}},
			ExternalRefs: []spdxRef{purl(module, src.version)},
		})
		doc.Relationships = append(doc.Relationships, spdxLink{doc.SPDXID, spdxID("Program", p), "DESCRIBES"})
	}
	for _, m := range append([]linked{library}, mods...) {
		id, license, info := spdxID("Module", m.Path+"-"+m.Version), "BSD-3-Clause", ""
		if m.Dir != "" {
			text, err := licenseTexts(m.Dir)
			if err != nil {
				return nil, err
			}
			license, info = licenseID(text), "go.sum "+m.Sum
		}
		doc.Packages = append(doc.Packages, spdxPkg{
			Name: m.Path, SPDXID: id, VersionInfo: m.Version, DownloadLocation: "NOASSERTION", LicenseConcluded: "NOASSERTION",
			LicenseDeclared: license, CopyrightText: "NOASSERTION", Purpose: "LIBRARY", SourceInfo: info, ExternalRefs: []spdxRef{purl(m.Path, m.Version)},
		})
		for _, p := range m.usedBy {
			doc.Relationships = append(doc.Relationships, spdxLink{spdxID("Program", p), id, "DEPENDS_ON"})
		}
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	return append(b, '\n'), err
}

// purl is the package URL that vulnerability databases know a Go module by.
func purl(path, version string) spdxRef {
	return spdxRef{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}
}

// notices are the texts that the licenses of what is linked want handed on.
func notices(mods []linked, goroot string) ([]byte, error) {
	var b strings.Builder
	b.WriteString("The programs contain these works beside Sluice's own, each under its own terms.\n")
	for _, m := range append([]linked{{Path: "Go's standard library", Dir: goroot}}, mods...) {
		text, err := licenseTexts(m.Dir)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "\n%s\n%s %s\n\n%s", strings.Repeat("=", 100), m.Path, m.Version, text)
	}
	return []byte(b.String()), nil
}
