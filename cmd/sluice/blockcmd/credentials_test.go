package blockcmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
)

func TestCredentialsAreReadAndErrorsKeepSecrets(t *testing.T) {
	own, theirs, err := parseCredentials("# of the backup host\nusername=me\npassword= s3cr=t/ \r\n\ntarget_username=it\ntarget_password=x\n")
	if err != nil || own != (block.Secret{Name: "me", Secret: " s3cr=t/ "}) || theirs != (block.Secret{Name: "it", Secret: "x"}) {
		t.Errorf("%+v %+v %v", own, theirs, err)
	}
	for text, want := range map[string]string{
		"username=me":                        "both needed",
		"username=me\nhunter2":               "line 2",
		"username=me\npasswrod=hunter2":      "line 2",
		"username=me\npassword=":             "no value",
		"password=hunter2\npassword=hunter2": "second time",
	} {
		_, _, err := parseCredentials(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
	path := filepath.Join(t.TempDir(), "c")
	if err := os.WriteFile(path, []byte("username=a\npassword=b\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readCredentials(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others read: %v", err)
	}
}

func FuzzParseCredentials(f *testing.F) {
	f.Add("username=a\npassword=b\n")
	f.Add("target_username=x\n#\n=\n")
	f.Fuzz(func(t *testing.T, s string) {
		own, _, err := parseCredentials(s)
		if err == nil && (own.Name == "" || own.Secret == "") {
			t.Fatalf("%q gives %+v", s, own)
		}
	})
}
