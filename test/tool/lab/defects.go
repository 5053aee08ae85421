package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-storage/sluice/internal/state"
)

// errDefect marks a run in which a program under test found fault with itself.
var errDefect = errors.New("a program under test tells of a defect of its own")

// defects reads what programs said in a run. One that ended a connection with a panic, or made an illegal move, may have gone on, and
// its script may have ended well.
func defects(dir string) error {
	var lines []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".txt" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, state.Defect) && len(lines) < 6 {
				name, _ := filepath.Rel(dir, path) // path is below dir
				lines = append(lines, name+": "+strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil || len(lines) == 0 {
		return err
	}
	return fmt.Errorf("%w:\n\t%s", errDefect, strings.Join(lines, "\n\t"))
}
