package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// lie is a fault put into a binary under test: a scenario shows with it that it would find such a fault.
type lie struct {
	name       string // the guest gets BINARY-NAME
	file       string // of the repository
	truth, lie string // what stands there once, and what takes its place
}

// The faults that make a file server lose what it said was safe.
var nfsLies = []lie{
	{"constant-verifier", "target/filesystem/fs.go", "s.verf.Store(binary.BigEndian.Uint64(b[:]))", "s.verf.Store(uint64(len(b)))"},
	{"empty-commit", "target/filesystem/storage.go", "return unix.Fsync(fd)", "return nil"},
}

// giveLiars builds a binary once more for each lie. The source tree stays as it is: the compiler is shown another file.
func (r *Run) giveLiars(binary string, lies ...lie) error {
	top := r.lab.top
	for _, l := range lies {
		path := filepath.Join(top, l.file)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := strings.Count(string(b), l.truth); n != 1 {
			return fmt.Errorf("%s has %q %d times, not once: the lie %s has to be told in another way", l.file, l.truth, n, l.name)
		}
		file := filepath.Join(r.Tmp, l.name+".go")
		if err := os.WriteFile(file, []byte(strings.Replace(string(b), l.truth, l.lie, 1)), 0o644); err != nil {
			return err
		}
		overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: file}})
		if err != nil {
			return err
		}
		if err := os.WriteFile(file+".json", overlay, 0o644); err != nil {
			return err
		}
		to := filepath.Join(r.Tmp, binary+"-"+l.name)
		cmd := exec.CommandContext(r.Ctx, "go", "build", "-trimpath", "-overlay", file+".json", "-o", to, "./cmd/"+binary)
		cmd.Dir, cmd.Env = top, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s with the lie %s: %w: %s", binary, l.name, err, out)
		}
		r.Give = append(r.Give, to)
	}
	return nil
}
