package nfs

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/sluice-storage/sluice/transport/fabric"
)

// Open mounts the directory that a URL names, as an FS whose root it is. For RDMA it goes through the Options' Device or Provider,
// and where there is neither it makes the fabric that the URL names, software iWARP if it names none. Close ends the FS and the
// fabric that Open made.
//
// The URL is nfs://HOST[:PORT]/PATH for TCP and nfs+rdma://HOST[:PORT]/PATH for RDMA; see ParseURL. A refusal to mount is a
// *MountError.
func Open(ctx context.Context, rawURL string, o Options) (*FS, error) {
	var made *fabric.Set
	if o.Device == nil && o.Provider == nil && o.Dial == nil {
		made = &fabric.Set{}
		if o.Log != nil {
			made.Say = func(line string) { o.Log.Warn(line) }
		}
		o.Provider = made.Device
	}
	v, name, err := Mount(ctx, rawURL, o)
	if err != nil {
		if made != nil {
			err = errors.Join(err, made.Close())
		}
		return nil, err
	}
	v.fabric = made
	if name = path.Clean(name); name != "." {
		var at object
		if at, err = v.walk(ctx, name, true); err == nil && at.attr.Type != TypeDir {
			err = fmt.Errorf("%w: %s", ErrNotDirectory, rawURL)
		}
		if err != nil {
			return nil, errors.Join(pathError("open", name, err), v.Close())
		}
		v.root = at.fh
	}
	return v, nil
}
