package keylanes.bench;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * A source record's value: u32 number of its key, u32 number of the record within its key, u64 running index in the
 * topic or scheduled time in ns since the epoch, filler; all little-endian.
 */
final class Value {
    private static final int HEAD_BYTES = 16;
    private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    private Value() {}

    static int key(byte[] value) {
        return (int) INT.get(value, 0);
    }

    static int number(byte[] value) {
        return (int) INT.get(value, 4);
    }

    static long indexOrTime(byte[] value) {
        return (long) LONG.get(value, 8);
    }

    /** W4's transformation: the head as it was, the rest reversed. */
    static byte[] reversed(byte[] value) {
        byte[] result = value.clone();
        for (int i = HEAD_BYTES, j = value.length - 1; i < value.length; i++, j--) {
            result[i] = value[j];
        }
        return result;
    }
}
