package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/savefile"
	"github.com/sluice-storage/sluice/target/scsi"
)

// identity is what initiators know a volume by, and the name under which the device server keeps the state of its unit. It is random,
// is made with the volume and ends with it: a later volume of that name or path is another disk. A file's identity lies beside it as
// PATH.identity. The state directory has the identities of other volumes, and copies of those of files, for while a file is away.
type identity struct {
	Serial string `json:"serial"`
	NAA    string `json:"naa"` // hexadecimal, as the others
	EUI    string `json:"eui"`
	Key    string `json:"key"` // of the unit's state file
}

// identityRecord is the state directory's copy. It is valid while the volume of its name has this engine and path.
type identityRecord struct {
	Engine string `json:"engine"`
	Path   string `json:"path"`
	identity
}

func newIdentity() *identity {
	var b [42]byte
	_, _ = rand.Read(b[:]) // it does not fail
	naa, eui := scsi.LocalDesignators(b[:16])
	return &identity{Serial: hex.EncodeToString(b[16:26]), NAA: hex.EncodeToString(naa), EUI: hex.EncodeToString(eui), Key: hex.EncodeToString(b[26:])}
}

// earlierIdentity is the identity that an earlier version gave a volume: made from its name, or from the configured serial number.
func earlierIdentity(cfg VolumeConfig) *identity {
	naa, eui, serial := scsi.DeriveIdentity(cfg.Name, cfg.Serial)
	return &identity{Serial: serial, NAA: hex.EncodeToString(naa), EUI: hex.EncodeToString(eui), Key: hex.EncodeToString(naa)}
}

func (id *identity) check() error {
	naa, nerr := hex.DecodeString(id.NAA)
	eui, eerr := hex.DecodeString(id.EUI)
	key, kerr := hex.DecodeString(id.Key)
	if nerr != nil || eerr != nil || kerr != nil || len(naa) != 8 || len(eui) != 8 || len(key) == 0 || !printable(id.Serial, 32) {
		return errors.New("it holds no identity of a volume")
	}
	return nil
}

// printable reports whether s has 1 to n characters that INQUIRY data may hold.
func printable(s string, n int) bool {
	return s != "" && len(s) <= n && strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7E }) < 0
}

func beside(path string) string { return path + ".identity" }

func (d *Daemon) identityDir() string { return filepath.Join(d.stateDir, "identity") }

func (d *Daemon) recordPath(volume string) string {
	return filepath.Join(d.identityDir(), volume+".json")
}

// allIdentified is a file that is written when a start has given every volume its identity. A volume without one is new from then on.
func (d *Daemon) allIdentified() string { return filepath.Join(d.identityDir(), ".all") }

// begunHere is a file that the first start writes where no earlier version has served. It says that this version has made the device
// server's directory, which is a sign of an earlier version otherwise. If that first start failed, an earlier version may still have
// served after it: each volume that it served has a state in the directory, under the identity that it made.
func (d *Daemon) begunHere() string { return filepath.Join(d.identityDir(), ".first") }

// readJSON reports whether the file is there.
func readJSON(path string, v any) (bool, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return true, fmt.Errorf("identity %s: %w", path, err)
	}
	return true, nil
}

func readIdentity(path string) (*identity, error) {
	id := &identity{}
	there, err := readJSON(path, id)
	if err == nil && there {
		if cerr := id.check(); cerr != nil {
			err = fmt.Errorf("identity %s: %w; put it back, or remove it and the volume becomes another disk", path, cerr)
		}
	}
	if err != nil || !there {
		return nil, err
	}
	return id, nil
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return savefile.Replace(path, append(b, '\n'))
}

// bearer is the thing that a volume's identity belongs to.
type bearer struct {
	regular bool   // a file: the identity lies beside it
	device  string // a block device, by the name that it has for itself: its name and path in the configuration do not matter
	medium  bool   // it is there; otherwise no new identity is made
}

// identify finds the identity of a volume, or makes one and writes it down. It returns nil where it is not known.
func (d *Daemon) identify(cfg VolumeConfig, b bearer) (_ *identity, err error) {
	defer func() { d.undecided = d.undecided || err != nil }()
	var id *identity
	place := beside(cfg.Path)
	if b.device != "" {
		place = filepath.Join(d.identityDir(), "device-"+b.device)
	}
	placed := b.regular || b.device != ""
	if placed {
		if id, err = readIdentity(place); err != nil {
			return nil, err
		}
	}
	found := id != nil
	rec := identityRecord{}
	known, err := readJSON(d.recordPath(cfg.Name), &rec)
	if err != nil && id == nil {
		return nil, err
	}
	if id == nil && known && rec.Engine == cfg.Engine && rec.Path == cfg.place() && rec.check() == nil {
		same := b.device == ""
		if !same {
			if same, err = d.wasAway(cfg, &rec.identity); err != nil {
				return nil, err
			}
		}
		if same {
			id = &rec.identity
		}
	}
	if id == nil {
		if id, err = d.firstIdentity(cfg, b.medium); id == nil || err != nil {
			return nil, err
		}
	}
	var berr error
	if placed && b.medium && !found {
		berr = writeJSON(place, id)
	}
	want := identityRecord{cfg.Engine, cfg.place(), *id}
	if rec != want {
		err = writeJSON(d.recordPath(cfg.Name), want)
	}
	switch {
	case berr != nil && err != nil, !placed && err != nil:
		return nil, fmt.Errorf("its identity cannot be written down: %w", errors.Join(berr, err))
	case berr != nil || err != nil:
		d.log.Warn("an identity is written down in one place of two", zap.String("volume", cfg.Name), zap.Error(errors.Join(berr, err)))
	}
	return id, nil
}

// firstIdentity makes the identity of a volume that has none. It returns nil where the volume has no medium.
func (d *Daemon) firstIdentity(cfg VolumeConfig, medium bool) (*identity, error) {
	earlier := d.upgrading
	if !earlier {
		var err error
		if earlier, err = d.servedEarlier(cfg); err != nil {
			return nil, err
		}
	}
	switch {
	case earlier:
		return earlierIdentity(cfg), nil
	case medium:
		return newIdentity(), nil
	}
	return nil, nil
}

// wasAway reports whether a record is of a block device that was missing when its volume kept the identity that an earlier version had
// made: no device has that identity yet. It fails where the identity of a device cannot be read.
func (d *Daemon) wasAway(cfg VolumeConfig, id *identity) (bool, error) {
	if *id != *earlierIdentity(cfg) {
		return false, nil
	}
	l, err := os.ReadDir(d.identityDir())
	for _, e := range l {
		if !strings.HasPrefix(e.Name(), "device-") || strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		of, rerr := readIdentity(filepath.Join(d.identityDir(), e.Name()))
		if err = errors.Join(err, rerr); of != nil && of.Key == id.Key {
			return false, nil
		}
	}
	return err == nil, err
}

// prepareIdentities finds out whether an earlier version has served from this state directory (upgrading), or none has (first).
func (d *Daemon) prepareIdentities() error {
	_, err := os.Stat(d.allIdentified())
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("state directory: %w", err)
	}
	begun, berr := os.ReadFile(d.begunHere())
	_, served := os.Stat(d.scsiState())
	for _, err := range []error{berr, served} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // whether this is an upgrade is not known
			return fmt.Errorf("state directory: %w", err)
		}
	}
	switch {
	case served != nil, len(begun) > 0:
	case berr != nil:
		d.upgrading = true
	default:
		// A start that did not make the directory: it is an earlier version's unless a volume has been given an identity, for the device
		// server has nothing of it before.
		d.upgrading = !d.someIdentified()
	}
	d.first = !d.upgrading
	err = os.MkdirAll(d.identityDir(), 0o700)
	if err == nil && d.first && len(begun) == 0 {
		err = savefile.Replace(d.begunHere(), []byte("scsi\n"))
	}
	if err == nil && d.first {
		err = savefile.MkdirAll(d.scsiState())
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// someIdentified reports whether a volume has been given an identity.
func (d *Daemon) someIdentified() bool {
	l, err := os.ReadDir(d.identityDir())
	return err != nil || slices.ContainsFunc(l, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".json") })
}

// servedEarlier reports whether an earlier version has served the volume since a first start of this one failed.
func (d *Daemon) servedEarlier(cfg VolumeConfig) (bool, error) {
	if !d.first {
		return false, nil
	}
	_, err := os.Stat(filepath.Join(d.scsiState(), scsi.StateFile(earlierIdentity(cfg).Key)))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("state directory: %w", err)
}

// identified ends what prepareIdentities began, and forgets volumes of memory that are not configured any more. Where the identity of a
// volume could not be found or written down, the question whether an earlier version served it stays open until it can be opened.
func (d *Daemon) identified() error {
	waits := (d.upgrading || d.first) && d.undecided
	if (d.upgrading || d.first) && !waits {
		if err := savefile.Replace(d.allIdentified(), nil); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	d.upgrading, d.first = false, waits
	entries, err := os.ReadDir(d.identityDir())
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		var rec identityRecord
		if known, err := readJSON(filepath.Join(d.identityDir(), e.Name()), &rec); ok && d.volumes[name] == nil && known && err == nil && !engineNamed(rec.Engine).lasting {
			d.forgetIdentity(name, false)
		}
	}
	return nil
}

// forgetIdentity removes what the state directory has of a volume that ends: a later one of its name inherits nothing. Where its medium
// stays, so does the state of its unit, which is found by the identity that lies beside the medium.
func (d *Daemon) forgetIdentity(name string, mediumStays bool) {
	var rec identityRecord
	known, err := readJSON(d.recordPath(name), &rec)
	if !known {
		return
	}
	d.forgetFile(name, d.recordPath(name))
	if err == nil {
		d.forgetState(name, rec, mediumStays)
	}
}

// forgetState removes the state of a unit, unless a volume has it by another name now.
func (d *Daemon) forgetState(name string, rec identityRecord, mediumStays bool) {
	if rec.check() != nil {
		return
	}
	for _, v := range d.volumes {
		if v.key == rec.Key {
			return
		}
	}
	d.leftBehind(name, scsi.ForgetUnit(d.scsiState(), rec.Key, mediumStays))
}

func (d *Daemon) forgetFile(volume, path string) {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		d.leftBehind(volume, err)
	}
}

func (d *Daemon) leftBehind(volume string, err error) {
	if err != nil {
		d.log.Warn("state of a volume that has ended is left behind", zap.String("volume", volume), zap.Error(err))
	}
}

// unitIdentity is the identity as the device server takes it: what is configured comes first.
func unitIdentity(cfg VolumeConfig, id *identity) (naa, eui []byte, serial string) {
	naa, _ = hex.DecodeString(id.NAA) // checked when it was read
	eui, _ = hex.DecodeString(id.EUI)
	serial = id.Serial
	if cfg.NAA != "" {
		naa, _ = parseNAA(cfg.NAA) // checked with the configuration
	}
	if cfg.Serial != "" {
		serial = cfg.Serial
	}
	return naa, eui, serial
}

// parseNAA reads an NAA designator of 8 or 16 bytes, as lsscsi and multipath print it: hexadecimal, with or without "naa.",
// "0x" or the 3 of a WWID.
func parseNAA(s string) ([]byte, error) {
	h := strings.ToLower(s)
	for _, p := range []string{"naa.", "0x"} {
		h = strings.TrimPrefix(h, p)
	}
	if len(h) == 17 || len(h) == 33 {
		h = strings.TrimPrefix(h, "3") // the WWID of Linux: the designator's type before it
	}
	b, err := hex.DecodeString(h)
	switch {
	case err != nil || len(b) != 8 && len(b) != 16:
		return nil, fmt.Errorf("naa %q is not 16 or 32 hexadecimal digits", s)
	case len(b) == 16 && b[0]>>4 != 6, len(b) == 8 && b[0]>>4 != 2 && b[0]>>4 != 3 && b[0]>>4 != 5:
		// SPC-4 section 7.8.6.6: the first digit is the format, and says the length.
		return nil, fmt.Errorf("naa %q begins with no format that has its length: 16 digits begin with 2, 3 or 5, 32 with 6", s)
	}
	return b, nil
}
