package rbd

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/ceph"
)

// ErrNotBuilt is what Open's error is in a binary that was built without Ceph.
var ErrNotBuilt = ceph.ErrNotBuilt

// Available is nil where this binary and this machine can open images; its text says what is missing.
func Available() error { return ceph.AvailableRBD() }

// wrap gives an error of the cluster the meaning that all engines share.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	var meaning error
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		meaning = blockdev.ErrNoSpace
	case errors.Is(err, unix.ETIMEDOUT):
		meaning = blockdev.ErrAway
	case errors.Is(err, unix.ESHUTDOWN):
		meaning = blockdev.ErrFenced
	case errors.Is(err, unix.EROFS):
		meaning = blockdev.ErrReadOnly
	case errors.Is(err, unix.EBUSY):
		meaning = blockdev.ErrBusy
	case errors.Is(err, unix.EIO):
		meaning = blockdev.ErrMedium
	default:
		return err
	}
	return fmt.Errorf("%w: %w", meaning, err)
}

// failed is the error of a request that librbd answered with rc.
func failed(r *blockdev.Request, rc int64) error {
	return wrap(&ceph.Error{Op: fmt.Sprintf("%v of %d bytes at %d", r.Op, r.Length, r.Offset), Errno: unix.Errno(-rc)})
}

// A FeatureError says that an image has something that cannot be served.
type FeatureError struct {
	Image  string
	Reason string // what it is, and what to do
}

func (e *FeatureError) Error() string { return "image " + e.Image + " cannot be served: " + e.Reason }

// checkFeatures refuses what librbd would open and this engine cannot promise anything of.
func checkFeatures(image string, info *ceph.ImageInfo, readOnly bool) error {
	f := info.Features
	switch {
	case f&^ceph.FeaturesKnown != 0:
		return &FeatureError{image, fmt.Sprintf("it has features that this version does not know (%#x)", f&^ceph.FeaturesKnown)}
	case f&ceph.FeatureMigrating != 0:
		return &FeatureError{image, "it is being migrated; finish that first (rbd migration execute, commit)"}
	case f&ceph.FeatureDirtyCache != 0:
		return &FeatureError{image, "a persistent write-back cache of another host holds writes of it; flush that first (rbd persistent-cache)"}
	case f&ceph.FeatureNonPrimary != 0 && !readOnly:
		return &FeatureError{image, "it is the secondary copy of a mirrored image; serve it read-only, or promote it first (rbd mirror image promote)"}
	}
	return nil
}

func featureNames(f uint64) string {
	var l []string
	for i, n := range ceph.FeatureNames {
		if f&(1<<i) != 0 {
			l = append(l, n)
		}
	}
	return strings.Join(l, ", ")
}
