/* Stand-in of one kernel module of the driver: a real ELF file that modinfo reads and depmod takes; it is never loaded.
 *
 * Compile with -DNAME, -DVERSION and -DLICENSE as strings. BROKEN marks one that builds and then does not load.
 */
#define INFO(tag, value) \
    static const char tag##_info[] __attribute__((section(".modinfo"), used, aligned(1))) = #tag "=" value

INFO(name, NAME);
INFO(version, VERSION);
INFO(license, LICENSE);
INFO(supported, "external");
INFO(vermagic, "any SMP mod_unload");
#ifdef BROKEN
INFO(lab, "does not load");
#endif
