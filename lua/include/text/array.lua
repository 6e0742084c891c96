--[[ array: writes JSON arrays, as events have them. ]]

--- Return the rest of an array after its first fields. `fields` are JSON, up to `size` of them; a missing field is
--- null, and nulls at the end are left out.
local function rest_of_array(fields, size)
  while size > 0 and not fields[size] do
    size = size - 1
  end
  if size == 0 then
    return ']'
  end
  for at = 1, size do
    fields[at] = fields[at] or 'null'
  end
  return ',' .. table.concat(fields, ',', 1, size) .. ']'
end
