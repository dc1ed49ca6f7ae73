import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.Product;
import scala.collection.Iterator;

/**
 * Lists everything that a parsed plan holds, as a JSON array of strings.
 *
 * "P", "E" and "D" with a class name open a plan, an expression and another value with parts; "["
 * opens a collection and "{" a map; "]" closes each of them. "X" names a value without parts,
 * "'" starts a text and "=" a number or boolean.
 */
public class PlanTree implements Function {
  public Object apply(Object plan) {
    List out = new ArrayList();
    list(plan, out);
    try {
      return new ObjectMapper().writeValueAsString(out);
    } catch (java.io.IOException error) {
      throw new RuntimeException(error);
    }
  }

  private void list(Object value, List out) {
    if (value == null) {
      return;
    } else if (value instanceof String) {
      out.add("'" + value);
    } else if (value instanceof Number || value instanceof Boolean) {
      out.add("=" + value);
    } else if (value instanceof scala.collection.Map) {
      listAll("{", ((scala.collection.Map) value).iterator(), out);
    } else if (value instanceof scala.collection.Iterable) {
      listAll("[", ((scala.collection.Iterable) value).iterator(), out);
    } else if (value instanceof Product) {
      String kind = value instanceof LogicalPlan ? "P" : value instanceof Expression ? "E" : "D";
      listAll(kind + nameClass(value), ((Product) value).productIterator(), out);
    } else if (value instanceof Map) {
      out.add("{");
      listJava(((Map) value).keySet(), out);
      listJava(((Map) value).values(), out);
      out.add("]");
    } else if (value instanceof java.util.Collection || value instanceof Object[]) {
      out.add("[");
      listJava(value instanceof Object[] ? Arrays.asList((Object[]) value) : value, out);
      out.add("]");
    } else {
      out.add("X" + value.getClass().getName());
    }
  }

  /** An anonymous class behaves as the class that it extends. */
  private String nameClass(Object value) {
    Class found = value.getClass();
    while (found.getName().contains("$anon$")) {
      found = found.getSuperclass();
    }
    String name = found.getName();
    return name.endsWith("$") ? name.substring(0, name.length() - 1) : name;
  }

  private void listAll(String opening, Iterator items, List out) {
    out.add(opening);
    while (items.hasNext()) {
      list(items.next(), out);
    }
    out.add("]");
  }

  private void listJava(Object items, List out) {
    java.util.Iterator all = ((java.util.Collection) items).iterator();
    while (all.hasNext()) {
      list(all.next(), out);
    }
  }
}
