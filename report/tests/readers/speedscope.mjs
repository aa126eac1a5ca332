// Holds a file against the schema that comes with speedscope.
import fs from 'node:fs'
import Ajv from 'ajv'

const schemaFile = new URL(
  'node_modules/speedscope/dist/release/file-format-schema.json',
  import.meta.url,
)
const schema = JSON.parse(fs.readFileSync(schemaFile, 'utf-8'))
const isValid = new Ajv({ allErrors: true, strict: false }).compile(schema)
const isRight = isValid(JSON.parse(fs.readFileSync(process.argv[2], 'utf-8')))
console.log(isRight ? 'valid' : JSON.stringify(isValid.errors, null, 2))
process.exitCode = isRight ? 0 : 1
