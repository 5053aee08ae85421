package daemon

import (
	"fmt"
	"strings"
)

// checkVolumes checks each volume, and what no two may have in common.
func (c *Config) checkVolumes() error {
	names, paths, serials, naas := map[string]bool{}, map[string]string{}, map[string]string{}, map[string]string{}
	for i, v := range c.Volumes {
		place := fmt.Sprintf("$.volumes[%d]", i)
		if names[v.Name] {
			return at(place+".name", "volume %s is named twice", v.Name)
		}
		names[v.Name] = true
		if err := v.check(place); err != nil {
			return err
		}
		if other := serials[v.Serial]; v.Serial != "" && other != "" {
			return at(place+".serial", "volumes %s and %s have the same serial %s: initiators would take them for one disk", other, v.Name, v.Serial)
		}
		serials[v.Serial] = v.Name
		if v.NAA != "" {
			b, err := parseNAA(v.NAA)
			if err != nil {
				return at(place+".naa", "volume %s: %w", v.Name, err)
			}
			if other := naas[string(b)]; other != "" {
				return at(place+".naa", "volumes %s and %s have the same naa %s: initiators would take them for one disk", other, v.Name, v.NAA)
			}
			naas[string(b)] = v.Name
		}
		if v.engine().image {
			if other := paths[v.place()]; other != "" {
				return at(place+".rbd", "volumes %s and %s have the same image %s", other, v.Name, v.place())
			}
			paths[v.place()] = v.Name
		}
		if v.engine().file {
			if other := paths[v.Path]; other != "" {
				return at(place+".path", "volumes %s and %s have the same path %s", other, v.Name, v.Path)
			}
			paths[v.Path] = v.Name
		}
	}
	for _, v := range c.Volumes {
		if !v.engine().file {
			continue
		}
		for _, own := range []string{v.Path + ".redo", beside(v.Path)} {
			if other := paths[own]; other != "" {
				return fmt.Errorf("volume %s: its path %s is where volume %s keeps what belongs to it; choose another", other, own, v.Name)
			}
		}
	}
	return nil
}

// check looks at one volume, which stands at place in the file.
func (v VolumeConfig) check(place string) error {
	switch {
	case v.Name == "":
		return at(place, "a volume has no name")
	case strings.ContainsAny(v.Name, "/\x00 \t\n"):
		return at(place+".name", "volume name %q may hold no slash and no white space", v.Name)
	}
	if err := checkKeys(v, "volume "+v.Name+": ", below(place)); err != nil {
		return err
	}
	e := v.engine()
	switch {
	case v.Physical < v.Block || v.Physical&(v.Physical-1) != 0:
		return at(place+".physical", "volume %s: physical %d is no power of two of at least the block size", v.Name, v.Physical)
	case v.Size < 0 || int64(v.Size)%int64(v.Block) != 0:
		return at(place+".size", "volume %s: size %v is no whole number of blocks of %d bytes", v.Name, v.Size, v.Block)
	case e.image && v.RBD == nil:
		return at(place, "volume %s: the %s engine needs an image: rbd: {pool: rbd, image: %s}", v.Name, v.Engine, v.Name)
	case !e.image && v.RBD != nil:
		return at(place+".rbd", "volume %s: the %s engine has no image; leave engine out, or rbd", v.Name, v.Engine)
	case !e.file && !e.image && v.Size == 0:
		return at(place, "volume %s: the %s engine needs a size", v.Name, v.Engine)
	case e.image && v.Atomic:
		return at(place+".atomic", "volume %s: the %s engine has no atomic writes", v.Name, v.Engine)
	case !e.lasting && v.Atomic:
		return at(place+".atomic", "volume %s: the %s engine keeps nothing across a loss of power, so no atomic writes either", v.Name, v.Engine)
	case !e.file && (v.LowSpace > 0 || v.Thick):
		return at(place, "volume %s: low_space and thick are about the file system below a file, which the %s engine has not", v.Name, v.Engine)
	}
	return nil
}
